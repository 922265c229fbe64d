"""Number of nodes that may sleep."""
