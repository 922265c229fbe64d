"""Learned policies against rules tuned with the same care, on separate parts of traces."""
