"""The journal, an SQLite file: its entries, its other tables, snapshots, and backups."""
