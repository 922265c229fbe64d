"""Nodes: registration, leases, sleep, measurements, and the engine protocol."""
