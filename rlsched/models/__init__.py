"""How fast and how hungry: clocks and power, sharing, CPU cores, locality; the catalogue of workloads."""
