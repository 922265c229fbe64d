"""Decisions: legal candidates, features, the Scheduler interface, the guard, the record."""
