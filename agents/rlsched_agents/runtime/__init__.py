"""Inference without torch: the forward pass in numpy, checkpoints as data, the `ppo` scheduler."""
