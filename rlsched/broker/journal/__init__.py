"""The journal: its entries as rows in SQLite, its other tables, snapshots, and copies."""
