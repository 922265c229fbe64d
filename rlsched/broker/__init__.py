"""The broker: a state machine without I/O that schedules jobs, and its journal, sockets and keys."""
