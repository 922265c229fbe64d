"""Training and evaluation of strategies. A strategy sets dials: numbers that change the prices of a rule."""
