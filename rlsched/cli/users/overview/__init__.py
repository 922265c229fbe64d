"""The page of `rlsched top`: nodes and the users of their GPUs, running jobs, the queue, users, energy."""
