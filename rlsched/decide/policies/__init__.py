"""Policies as data: presets, files, former names, and what a policy may do."""
