"""Training and evaluation of strategies, which set the dials (changing numbers) of a rule."""
