"""Learning and deciding: heuristics, PPO, and inference without torch."""
