"""`rlsched notify`: sends the notices that jobs requested; a process that reads the journal."""
