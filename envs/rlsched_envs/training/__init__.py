"""The training environments: episodes, windows, observations, Gymnasium and vector interfaces."""
