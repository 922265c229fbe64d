"""Workloads of a cluster: traces in the normal form, the synthetic generator, load, run-time prediction."""
