"""Clusters: the description (TOML), the state (arrays), and the ledger that allocates and releases GPUs."""
