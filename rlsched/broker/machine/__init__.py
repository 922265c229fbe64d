"""The broker's state machine, without I/O: it takes batches of events and returns effects."""
