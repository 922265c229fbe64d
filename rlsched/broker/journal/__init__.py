"""The journal: entries, their rows in SQLite, the tables beside them, snapshots, and copies."""
