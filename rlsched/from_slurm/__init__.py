"""Imports from a Slurm, by its commands or as text: its nodes as a cluster file, downtimes as node events."""
