"""Imports from a Slurm cluster, through its commands or from their saved output.

Converts nodes to a cluster file, and downtimes to node events.
"""
