"""How fast and how hungry: clocks and power, sharing, CPU cores and input, locality; the catalogue of workloads."""
