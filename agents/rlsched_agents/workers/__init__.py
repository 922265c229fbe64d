"""Worker processes: limits of their threads, and the connection to a Ray cluster that runs them."""
