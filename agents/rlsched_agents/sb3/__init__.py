"""Serves models that Stable-Baselines3 trained on `rlsched/Cluster-v0` as policies."""
