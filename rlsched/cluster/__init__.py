"""Clusters: the description (TOML), the state (arrays), and the ledger, which allocates and releases GPUs."""
