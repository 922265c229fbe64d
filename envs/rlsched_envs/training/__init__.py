"""The training environments: episodes, windows, observations, and the Gymnasium and vector interfaces."""
