"""The broker: the state machine that decides (without I/O), and the journal, sockets and keys around it."""
