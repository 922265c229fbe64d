"""`rlsched whatif`: how well replays reproduce a history, and how long jobs wait under other policies."""
