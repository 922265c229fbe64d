"""Worker processes: their threads, and the connection to a Ray cluster whose workers run them."""
