"""TensorBoard: writes and reads event files, and shows stores of decisions in the tab «Decisions»."""
