"""Processes of ranks under shims (processes that outlive the daemon), output of ranks, health checks."""
