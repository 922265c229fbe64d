"""Rows that a network sees of a decision, and picks from: candidates, features, variants."""
