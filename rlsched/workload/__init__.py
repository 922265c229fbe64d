"""Workloads of a cluster: traces in their normal form, the synthetic generator, load, prediction."""
