"""Replays a trace under several policies and reports the results as numbers, tables and files."""
