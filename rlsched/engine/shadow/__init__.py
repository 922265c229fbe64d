"""A shadow follows a Slurm, makes and records its own decisions, and writes nothing to the Slurm."""
