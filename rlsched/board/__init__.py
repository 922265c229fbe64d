"""TensorBoard: what decisions look like in curves and tables, writing them, reading them back."""
