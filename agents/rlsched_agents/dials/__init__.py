"""Training and evaluation of strategies, which set dials: numbers that adjust settings of a rule."""
