"""Verbs that need no broker: they use traces, cluster files, models, and the curves of training runs."""
