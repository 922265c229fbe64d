"""Compaction of a journal: a base replaces old entries."""
