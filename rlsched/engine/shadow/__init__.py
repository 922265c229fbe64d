"""A shadow: it follows a Slurm, decides beside it, records that, and writes nothing to it."""
