"""What a Slurm knows of itself, asked or as text: its nodes as a cluster file, downtimes as node events."""
