"""Models of speed and power: clocks, sharing, CPU cores, locality; and the catalogue of workloads."""
