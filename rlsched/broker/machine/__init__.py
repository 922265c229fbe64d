"""The state machine without I/O: batches of events in, effects out."""
