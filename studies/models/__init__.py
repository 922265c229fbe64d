"""What the models of speed and power are fitted to, how far off they are, and the catalogue of workloads."""
