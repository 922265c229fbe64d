"""The store of decisions: decision records, and events of jobs and nodes."""
