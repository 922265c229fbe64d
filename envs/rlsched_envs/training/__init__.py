"""The training environments: windows of traces, episodes, and interfaces for Gymnasium and for SB3."""
