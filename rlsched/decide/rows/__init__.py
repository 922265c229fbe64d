"""Rows, the options among which a network chooses: their candidates, features and variants."""
