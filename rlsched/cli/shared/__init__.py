"""Options, tables and screens that several verbs share."""
