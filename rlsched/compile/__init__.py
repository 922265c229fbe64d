"""Compilation of kernels with numba: the decorators, their cache on disk, and progress while they compile."""
