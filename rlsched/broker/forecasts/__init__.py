"""The forecaster's process, and what the broker sees of it."""
