"""Serves models of Stable-Baselines3, trained on `rlsched/Cluster-v0`, as policies."""
