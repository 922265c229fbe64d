"""Long trials of a whole cluster with injected failures: `python -m tests.soak --help`."""
