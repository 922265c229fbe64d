"""The node's connection to the broker, its lease, and the state machine for the broker's messages."""
