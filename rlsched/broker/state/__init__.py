"""State of the broker: jobs, nodes, users, predictions. Only facts (journal entries) change it."""
