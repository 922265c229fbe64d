"""The command `rlsched`: one module a group of verbs, each imported only when its verb is used."""
