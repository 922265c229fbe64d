"""The screen of `rlsched top`: nodes with the users of their GPUs, running jobs, queue, users, energy."""
