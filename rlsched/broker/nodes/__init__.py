"""Nodes: registration, leases, sleep, what they measure, and what an engine is."""
