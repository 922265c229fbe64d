"""The store of decisions: decisions, and events of jobs and nodes."""
