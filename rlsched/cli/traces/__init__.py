"""Verbs that need no broker: traces, cluster files, models, training runs."""
