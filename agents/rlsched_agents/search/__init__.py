"""Looking ahead in sampled futures: what `rollout` and `ppo` with a search decide by."""
