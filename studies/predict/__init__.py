"""How good predictions from history are, what they are worth, and what they cost."""
