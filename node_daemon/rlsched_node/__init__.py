"""The node daemon: starts a node's jobs as real processes and watches them. Jobs survive its restart."""
