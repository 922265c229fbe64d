"""Rows: the options of a decision, from which a network chooses; their candidates, features and variants."""
