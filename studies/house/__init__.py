"""What the source looks like, counted."""
