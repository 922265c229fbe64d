"""Compaction of a journal: replaces old entries by a base, which is the state after these entries."""
