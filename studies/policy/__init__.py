"""Learned policies against rules tuned with the same care, on parts of traces that are kept apart."""
