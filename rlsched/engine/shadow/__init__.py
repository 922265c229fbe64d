"""A shadow: a broker that follows a Slurm cluster, records its own decisions, and never writes to Slurm."""
