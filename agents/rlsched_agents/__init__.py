"""What learns and what decides: heuristics, PPO, and inference without torch."""
