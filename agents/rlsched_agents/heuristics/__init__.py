"""Schedulers that follow a rule."""
