"""The characterisation of a trace as one self-contained page."""
