"""Price and carbon intensity of electricity over time: reads, describes, generates and forecasts series."""
