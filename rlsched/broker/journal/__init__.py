"""The journal: entries, their rows in SQLite, its other tables, snapshots, and copies."""
