"""Shared by all packages of the broker: journal facts, times, non-fatal errors."""
