"""The node's connection to the broker, the lease, and the state machine that handles the broker's
messages."""
