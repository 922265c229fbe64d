"""Standby brokers: on the same journal, or on another machine with a copy of it."""
