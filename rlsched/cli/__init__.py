"""The command `rlsched`: one module per group of verbs (subcommands), imported on first use."""

from rlsched.collector import imported

imported("click")  # all verbs need click
