"""Renders the characterisation of a trace as one self-contained HTML page."""
