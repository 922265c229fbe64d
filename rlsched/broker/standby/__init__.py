"""Standby brokers: on the primary's journal, or on another machine with a copy of the journal."""
