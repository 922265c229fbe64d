"""Models that Stable-Baselines3 has trained on `rlsched/Rows-v0`, served as policies."""
