"""Research questions about rlsched, answered once; nothing of the product imports them."""
