"""Price and carbon of electricity over time: read from files, described, converted, generated."""
