"""`rlsched whatif`: fidelity of replays of a history, and waiting times under other policies."""
