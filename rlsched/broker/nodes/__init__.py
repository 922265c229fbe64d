"""Nodes of the cluster: registration, leases, sleep, launches, measurements, and the engine protocol."""
