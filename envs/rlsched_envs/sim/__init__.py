"""The simulator without Gymnasium: events, moves, and the loop of a run."""
