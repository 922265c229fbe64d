"""Long trials of a whole cluster under fire: `python -m tests.soak --help`."""
