"""Counts of the source, and a check of its prose."""
