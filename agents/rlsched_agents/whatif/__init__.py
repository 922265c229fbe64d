"""`rlsched whatif`: how well replays explain a history, and what other policies would have made of it."""
