"""Standby brokers, on the same journal or with a copy of it."""
