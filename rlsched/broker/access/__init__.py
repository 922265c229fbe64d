"""Who may speak as what: keys, roles, and tokens to join."""
