"""The node daemon: starts a node's jobs as real processes, watches them, and survives its own restart."""
