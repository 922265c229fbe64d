"""The store of decisions: what was decided, and what became of jobs and nodes."""
