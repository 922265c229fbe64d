"""`kernel`: numba's njit with an on-disk cache that is keyed by the source of every kernel.

numba notices a change of the function's own file only, not of the kernels that it calls in other files.
So the cache lives in a directory named after a digest of all kernel sources.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` in nopython mode at first call, or load it from the cache.

    It must not make arrays (views are fine): it is compiled without reference counts. With them, every call
    that passes the arrays of a state counts up and down each one, and that took five times as long as the
    work itself (`_nrt` is numba's own switch for this; numba's version is pinned).
    """
    return _compiled(function, makes_arrays=False, inlined=True)


def large_kernel(function: F) -> F:
    """As `kernel`, for a large function: callers call it, where a `kernel` is copied into each of them."""
    return _compiled(function, makes_arrays=False, inlined=False)


def array_kernel(function: F) -> F:
    """As `kernel`, for a function that makes arrays of its own."""
    return _compiled(function, makes_arrays=True, inlined=False)


def _compiled(function: F, *, makes_arrays: bool, inlined: bool) -> F:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir(Path(function.__code__.co_filename).parent))
    try:
        compiled: F = numba.njit(cache=True, error_model="numpy", _nrt=makes_arrays, forceinline=inlined)(
            function
        )
    finally:
        config.CACHE_DIR = before
    return compiled


@cache
def _cache_dir(folder: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlsched" / "kernels"
    digest = hashlib.sha256(numba.__version__.encode() + Path(__file__).read_bytes())
    for source_folder in sorted({folder, *(Path(__file__).parent / part for part in ("cluster", "decide"))}):
        for source in sorted(source_folder.glob("*.py")):
            text = source.read_bytes()
            if b"kernel\n" in text or b"NamedTuple" in text:
                digest.update(text)
    return root / digest.hexdigest()[:16]
