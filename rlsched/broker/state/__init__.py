"""State of the broker: jobs, nodes, users, predictions. Only facts of the journal change it."""
