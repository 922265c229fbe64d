"""Output on terminals: text made harmless, tables, layouts, progress bars."""
