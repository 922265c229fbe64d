"""Verbs for users: submit, change, list and explain jobs, and show the state of the cluster."""
