"""Runs the command line as `python -m rlsched`."""

from rlsched.cli.main import main

main()
