"""What a cluster is: its description (TOML), its state (arrays), the ledger that allocates and releases."""
