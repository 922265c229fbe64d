"""Renders the statistics of a trace as one HTML page, which loads no other files."""
