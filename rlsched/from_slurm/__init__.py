"""Imports from a Slurm, by its commands or from text: nodes as a cluster file, downtimes as node events."""
