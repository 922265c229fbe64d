"""Verbs without a broker: traces, cluster files, models, training runs."""
