"""Compilation of kernels with numba: the decorators, the cache on disk, and progress messages."""
