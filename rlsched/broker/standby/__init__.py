"""Brokers that wait for another one's end, on the same journal or with a copy of it."""
