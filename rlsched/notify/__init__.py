"""`rlsched notify`: tells of jobs that asked for it; a process beside the broker that reads its journal."""
