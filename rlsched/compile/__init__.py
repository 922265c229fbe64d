"""Compiles kernels with numba: the decorators, the cache on disk, and the progress of compilation."""
