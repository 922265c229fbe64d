"""What the broker predicts of jobs, and how it learns that."""
