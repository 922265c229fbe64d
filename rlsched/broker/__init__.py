"""The broker: a state machine without I/O that decides, and the journal, sockets and keys around it."""
