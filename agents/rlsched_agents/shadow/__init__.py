"""`rlsched shadow`: daily report of a policy that runs in shadow mode next to Slurm."""
