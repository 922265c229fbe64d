"""Strategies that set dials: their training by evolution or by PPO, and their evaluation."""
