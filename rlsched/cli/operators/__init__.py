"""Verbs of operators: broker, nodes, keys, journal, quotas, and the processes around them."""
