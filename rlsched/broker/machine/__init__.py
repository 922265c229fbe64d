"""The broker's state machine, without I/O: processes batches of events and returns effects."""
