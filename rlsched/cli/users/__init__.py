"""Verbs of users: jobs from submission to explanation, and the state of the cluster."""
