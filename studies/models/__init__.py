"""Fits of the models of speed and power, their errors, and the catalogue of workloads."""
