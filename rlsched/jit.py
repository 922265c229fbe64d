"""Decorators that compile kernels (functions on arrays) of user-written rules, as in examples/own_rule.py."""

from __future__ import annotations

from rlsched.compile.jit import array_kernel, kernel

__all__ = ["array_kernel", "kernel"]
