"""A journal is kept within bounds: a base takes the place of entries that are old."""
