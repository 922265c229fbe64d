"""Accuracy of predictions from history, their value, and their cost."""
