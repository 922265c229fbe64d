"""`python -m rlsched`: the command line."""

from rlsched.cli.main import main

main()
