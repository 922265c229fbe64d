"""Verbs for operators: broker, nodes, keys, journal, quotas, metrics, notices, and the gateway to Slurm."""
