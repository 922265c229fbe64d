"""The store of decisions: files with decision records, and with events of jobs and nodes."""
