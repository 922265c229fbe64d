"""Helpers for files and directories: private files, locks, free disk space."""
