"""Live screens: the terminal, the thread that queries the broker, the pages, and the loop."""
