"""Price and carbon intensity of electricity over time: reads, describes, converts and generates series."""
