"""Queue order: keys, the Gittins index, and predictions revised by observations."""
