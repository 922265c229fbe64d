"""What `rlsched top` shows: nodes and who has their GPUs, running jobs, the queue, users, energy."""
