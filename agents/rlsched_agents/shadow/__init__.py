"""`rlsched shadow`: what a shadow of a Slurm has seen, day by day."""
