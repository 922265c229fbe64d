"""Live screens: the terminal, the thread that queries the broker, pages of text, and the main loop."""
