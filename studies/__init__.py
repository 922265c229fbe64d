"""One-time research questions about rlsched; no part of the product imports them."""
