"""Workloads measured on a real GPU, as rows of the catalogue."""
