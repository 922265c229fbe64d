"""Training of strategies, which set the dials of a rule, by evolution or PPO, and their evaluation."""
