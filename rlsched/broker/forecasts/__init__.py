"""The forecaster's process, and the broker's interface to it."""
