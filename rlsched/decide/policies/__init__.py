"""Policies as data: presets, files, former names, and permissions."""
