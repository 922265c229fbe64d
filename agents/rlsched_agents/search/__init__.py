"""Look-ahead in sampled futures, for `rollout` and for `ppo` with a search."""
