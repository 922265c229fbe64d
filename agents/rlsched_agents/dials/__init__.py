"""Strategies that set dials: how they are trained, by evolution or by PPO, and how they are judged."""
