"""TensorBoard: curves and tables of decisions, writing and reading event files."""
