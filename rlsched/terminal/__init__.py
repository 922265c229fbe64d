"""Output on terminals: escaped text, tables, layouts, progress bars."""
