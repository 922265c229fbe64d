"""`rlsched whatif`: how well replays reproduce a history, and waiting times under other policies."""
