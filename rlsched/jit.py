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

    It counts no references: taking a field of a record array would otherwise be two atomic operations, which
    were four fifths of a run's time. So it allocates no array: it writes into those it is given.
    """
    return _compiled(function, counts_references=False)


def allocating_kernel(function: F) -> F:
    """A `kernel` that makes arrays of its own (`np.zeros`, `.copy()`), and returns none. Slower by far."""
    return _compiled(function, counts_references=True)


def _compiled(function: F, *, counts_references: bool) -> F:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir(Path(function.__code__.co_filename).parent))
    try:
        compiled: F = numba.njit(cache=True, error_model="numpy", _nrt=counts_references)(function)
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
