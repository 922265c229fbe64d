"""What the synthetic generator is fitted to, and how near it comes."""
