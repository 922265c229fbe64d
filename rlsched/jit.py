"""`kernel`: numba's njit with an on-disk cache that is keyed by the source of every kernel.

numba notices a change of the function's own file only, not of the kernels that it calls in other files.
So the cache lives in a directory named after a digest of all kernel sources. A file of plain functions that
another compiles has to say so, «compiled by ... as kernels», to be one of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

_BLAS = "scipy.linalg.cython_blas"

if _BLAS not in sys.modules:
    # numba asks for scipy's BLAS at its import, which takes a fifth of a short command's time; no kernel
    # here calls it. For that moment it is not there.
    sys.modules[_BLAS] = None  # type: ignore[assignment]
    import numba.np.arraymath

    del sys.modules[_BLAS]

import numba  # noqa: E402 - see above
from numba.core import config  # noqa: E402

from rlsched.linking import DoorCompiler, InsideCompiler  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])


class Kernel:
    """A compiled function. From kernels it is called directly; from Python through a door of its own.

    numba gives every function a door for Python. To unpack a state's arrays there takes about as long to
    compile as most kernels do, and few are ever called from Python: the door is made when that happens.
    """

    def __init__(self, function: Callable[..., Any], *, makes_arrays: bool, inlined: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._options = {
            "cache": True,
            "error_model": "numpy",
            "_nrt": makes_arrays,
            "no_cfunc_wrapper": True,
        }
        self._door: Any = None
        with _cache_in("inside", function):
            self._inside = numba.njit(
                **self._options,
                forceinline=inlined,
                no_cpython_wrapper=True,
                pipeline_class=InsideCompiler,
            )(function)

    @property
    def _numba_type_(self) -> Any:
        return self._inside._numba_type_

    def __call__(self, *args: Any) -> Any:
        """Call it from Python."""
        if self._door is None:
            with _cache_in("doors", self.py_func):
                self._door = numba.njit(**self._options, pipeline_class=DoorCompiler)(self.py_func)
        return self._door(*args)


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
    return cast("F", Kernel(function, makes_arrays=makes_arrays, inlined=inlined))


@contextmanager
def _cache_in(part: str, function: Callable[..., Any]) -> Iterator[None]:
    """Have numba keep what it compiles of this function in one part of the cache."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir(Path(function.__code__.co_filename).parent) / part)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _cache_dir(folder: Path) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlsched" / "kernels"
    digest = hashlib.sha256(numba.__version__.encode())
    for source in (Path(__file__), Path(__file__).with_name("linking.py")):
        digest.update(source.read_bytes())
    for source_folder in sorted(
        {folder, *(Path(__file__).parent / part for part in ("cluster", "decide", "models"))}
    ):
        for source in sorted(source_folder.glob("*.py")):
            text = source.read_bytes()
            if b"kernel\n" in text or b"NamedTuple" in text or b" as kernels" in text:
                digest.update(text)
    return root / digest.hexdigest()[:16]


@kernel
def wide(number: int) -> int:
    """The same number, of 64 bits whatever it was: large functions are compiled for each type they meet."""
    return number + 0
