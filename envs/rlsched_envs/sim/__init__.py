"""The simulator: events, moves and the loop of a run, without Gymnasium."""
