"""Live screens: the terminal, the thread that queries the broker, text pages, and the main loop."""
