"""TensorBoard: curves and tables of decisions; writes and reads event files."""
