"""Models of speed and power: clocks, sharing, MIG, CPU cores, nodes of a gang; the workload catalogue."""
