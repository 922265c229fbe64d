"""A shadow follows a Slurm: it makes and records its own decisions, and writes nothing to the Slurm."""
