"""`rlsched notify`: notices about jobs that asked for them, sent by a process that reads the journal."""
