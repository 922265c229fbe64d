"""Rule-based schedulers."""
