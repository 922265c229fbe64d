"""Fits of the synthetic generator, and its distance from real traces."""
