"""State of the broker, changed by facts of the journal only: jobs, nodes, users, predictions."""
