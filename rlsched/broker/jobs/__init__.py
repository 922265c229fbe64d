"""Jobs from their submission to their end: arrays, gates, attempts, orders about them."""
