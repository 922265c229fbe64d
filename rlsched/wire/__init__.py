"""The messages between client, broker and node, and their version."""
