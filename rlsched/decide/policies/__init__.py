"""Policies as data: presets and files."""
