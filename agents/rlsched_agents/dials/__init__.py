"""Strategies that set dials: training by evolution or by PPO, and evaluation."""
