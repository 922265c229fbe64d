"""How many nodes may sleep."""
