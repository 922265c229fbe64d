"""`rlsched notify`: a process that reads the journal and sends the notices that users requested for jobs."""
