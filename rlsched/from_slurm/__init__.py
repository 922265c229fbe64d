"""Imports from a Slurm, by its commands or from text: nodes as a cluster, downtimes as node events."""
