"""Training and evaluation of strategies. A strategy sets dials: numbers that adjust settings of a rule."""
