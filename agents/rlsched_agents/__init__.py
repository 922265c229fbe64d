"""Training and evaluation of policies, replays of a site's history, and the schedulers `sb3` and `random`."""
