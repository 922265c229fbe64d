"""The command `rlsched`: one module a group of verbs, each imported only when its verb is used."""

from rlsched.collector import imported

imported("click")  # all of them need it
