"""Replays a trace under several policies and says how they did: numbers, tables, files."""
