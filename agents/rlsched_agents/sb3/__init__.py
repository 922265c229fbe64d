"""Serves models of Stable-Baselines3 (trained on `rlsched/Rows-v0` or `rlsched/Cluster-v0`) as policies."""
