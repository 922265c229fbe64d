"""The command `rlsched`: one module per group of verbs, imported only when one of its verbs is used."""

from rlsched.collector import imported

imported("click")  # all verbs need click
