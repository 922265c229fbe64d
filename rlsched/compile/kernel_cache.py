"""Cache of compiled kernels on disk. A kernel's key is its code and the code of all kernels that it calls.

numba's own cache does not notice changes of called functions in other files. In this cache, an entry is named
after a digest of the byte code and the constants of the kernel, and of every kernel that it calls. Therefore
a change recompiles only the affected kernels, and two checkouts of one version share their entries. Entries
for different argument types are in different files, because another version may not know some of the types.

If several processes need a kernel at once, one of them compiles it; the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)
from numba.core.types import BaseNamedTuple  # type: ignore[attr-defined]

from rlsched.compile.compiling import COMPILING
from rlsched.compile.reference import BY_REFERENCE
from rlsched.compile.shared_code import SHARED_CODE, SUFFIX

KEPT_UNUSED_DAYS: Final = 30
"""Number of days without use after which an entry is removed."""
_KNOWN_PACKAGES: Final = ("math", "numpy", "numba")
"""Packages with functions that kernels can call; their versions are part of the key."""


# ---- keys of kernels ------------------------------------------------------------------------------


class Digests:
    """Computes digests of functions and of the values to which they refer; each function is digested once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # by identity; holding the object keeps its id unique

    def digest_of(self, function: types.FunctionType) -> bytes:
        """Return the digest of a function's byte code, its constants, and everything that it refers to."""
        found = self._known.get(id(function))
        if found is None:
            self._known[id(function)] = (function, function.__qualname__.encode())  # for recursive calls
            hasher = hashlib.sha256()
            for part in _parts(function):
                hasher.update(part if isinstance(part, bytes) else self._of_value(part))
            found = self._known[id(function)] = (function, hasher.digest())
        return found[1]

    def _of_value(self, value: Any) -> bytes:
        """Return the digest of a value that a function refers to."""
        function = getattr(value, "py_func", value)
        if isinstance(function, types.FunctionType):
            kind = getattr(value, "kind", "function")
            return f"{kind} {function.__module__}".encode() + self.digest_of(function)
        if isinstance(value, np.ndarray):
            return f"array {value.dtype.descr} {value.shape}".encode() + value.tobytes()
        if isinstance(value, tuple):
            return b"".join([type(value).__name__.encode(), *(self._of_value(one) for one in value)])
        if isinstance(value, type) and hasattr(value, "_fields"):
            return f"tuple {value.__qualname__} {value._fields} {value in BY_REFERENCE}".encode()
        if isinstance(value, bool | int | float | complex | str | bytes | np.dtype | np.generic):
            return f"{type(value).__name__} {value!r}".encode()
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        return f"{type(value).__name__} {name}".encode()


def _parts(function: types.FunctionType) -> Iterator[Any]:
    """Yield the inputs of a function's digest: its byte code, and the values to which it refers."""
    code, scope = function.__code__, function.__globals__
    yield code.co_code
    yield repr((code.co_argcount, code.co_varnames, code.co_names)).encode()
    for constant in code.co_consts:
        if constant != function.__doc__:
            yield repr(constant).encode()
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    for name in code.co_names:
        if name not in scope:
            continue
        value = scope[name]
        if not isinstance(value, types.ModuleType):
            yield value
        elif value.__name__.partition(".")[0] not in _KNOWN_PACKAGES:
            yield from (getattr(value, inner) for inner in code.co_names if hasattr(value, inner))


DIGESTS: Final = Digests()


@cache
def _versions() -> str:
    """Return a digest of the package versions and of the modules that compile and link kernels."""
    hasher = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {np.__version__}".encode())
    for name in ("jit.py", "kernel_cache.py", "linking.py", "packing.py", "shared_code.py"):
        hasher.update(Path(__file__).with_name(name).read_bytes())
    return hasher.hexdigest()[:12]


def is_kept(function: types.FunctionType) -> bool:
    """Return whether the cache has a kernel's code for calls from Python.

    The code for at least one combination of argument types is enough.
    """
    return any(folder("entries").glob(f"*-{DIGESTS.digest_of(function).hex()[:16]}.*.nbi"))


# ---- storage --------------------------------------------------------------------------------------


def folder(part: str) -> Path:
    """Return the folder of a cache part.

    `part`: `inside` (functions that only kernels call), `shared` (shared kernels), or `entries` (functions
    that Python calls).
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rlsched" / f"kernels-{_versions()}" / part


class _Locator(_CacheLocator):  # type: ignore[misc]
    """Gives numba the folder and the key of a kernel's entries."""

    def __init__(self, function: types.FunctionType, part: str) -> None:
        self._digest = DIGESTS.digest_of(function).hex()
        self._folder = folder(part)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return self._digest[:16]


class _Entries(CompileResultCacheImpl):  # type: ignore[misc]
    """numba's reader and writer of compiled code; reads and writes in the folder of this cache."""

    def __init__(self, function: types.FunctionType, part: str) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, part)
        name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        self._name = name
        self._filename_base = self.get_filename_base(name, "")

    def reduce(self, cres: Any) -> Any:
        """Return the data to store: symbols of the shared kernels that the code calls, and numba's data."""
        return cres.library.needs, super().reduce(cres)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return the compiled function, with the shared kernels that it calls loaded."""
        needs, data = payload
        SHARED_CODE.load(target_context.codegen()._engine, folder("shared"), needs)
        return super().rebuild(target_context, data)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The entries of one kernel in the cache. Their key is computed at first use.

    Args:
        function: The kernel's Python function; the functions that it calls can be defined later.
        part: `inside`, `shared` or `entries`.
        calls: Returns the Python functions of all kernels that this kernel calls, directly or indirectly.
    """

    def __init__(
        self, function: types.FunctionType, part: str, calls: Callable[[], set[types.FunctionType]]
    ) -> None:
        self._function, self._part, self._calls = function, part, calls
        self._is_open = False

    def _open(self, sig: Any) -> None:
        """Select the file of the entry for these argument types."""
        if not self._is_open:
            self._impl_class = lambda function: _Entries(function, self._part)
            super().__init__(self._function)
            self._is_open = True
        self._cache_file = IndexDataCacheFile(
            cache_path=self.cache_path,
            filename_base=f"{self._impl.filename_base}-{types_digest(sig)}",
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    @property
    def cache_path(self) -> str:
        """Return the folder of the entries."""
        return str(folder(self._part))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """See `numba.core.caching`. If an entry cannot be read, the kernel is compiled again."""
        self._open(sig)
        index = Path(self._cache_file._index_path)
        try:
            found = super().load_overload(sig, target_context)
            if found is not None:
                index.touch()
        except Exception:
            index.unlink(missing_ok=True)
            found = None
        if found is None:
            COMPILING.begins(self._said, self._needed())
        else:
            COMPILING.report_available(self._said, compiled=False)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """See `numba.core.caching`. Also removes unused entries."""
        self._open(sig)
        super().save_overload(sig, data._replace(type_annotation=""))  # else the source with all types
        COMPILING.report_available(self._said, compiled=True)
        if self._part == "entries":
            COMPILING.ends(self._needed())
        _prune(Path(self.cache_path).parent.parent)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """See `numba.core.caching`. In the cache key, a digest replaces the argument types.

        As text, the types would be ten times as long as the rest of the key.
        """
        return types_digest(sig), codegen.magic_tuple(), DIGESTS.digest_of(self._function)

    @property
    def _said(self) -> bytes:
        """Return the name of the kernel in progress reports. All processes use the same name."""
        return DIGESTS.digest_of(self._function)

    def _needed(self) -> set[bytes]:
        return set(map(DIGESTS.digest_of, self._calls())) if self._part == "entries" else set()

    @contextmanager
    def alone(self, sig: Any) -> Iterator[None]:
        """Let only one process at a time compile this kernel for these argument types."""
        self._open(sig)
        place = Path(self.cache_path).parent / "locks"
        place.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{self._part} {self._cache_file._index_name}".encode()).hexdigest()[:24]
        with (place / name).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                COMPILING.waits()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@cache
def _prune(root: Path) -> None:
    """Remove each entry, of any version, that was not loaded in the last `KEPT_UNUSED_DAYS` days.

    Later calls in the same process do nothing.
    """
    before_s = time.time() - KEPT_UNUSED_DAYS * 86400
    for used in [*root.glob("kernels-*/*/*.nbi"), *root.glob(f"kernels-*/shared/*{SUFFIX}")]:
        with suppress(FileNotFoundError):  # another process removed it
            if used.stat().st_mtime < before_s:
                for entry in [*used.parent.glob(f"{used.stem}.*.nbc"), used]:
                    entry.unlink()


def types_digest(sig: Any) -> str:
    """Return a digest of argument types, from numba's description.

    For a tuple, the digest includes the class, the fields, and how the tuple is passed.
    """
    return hashlib.sha256(repr([_described(one) for one in sig]).encode()).hexdigest()[:12]


def _described(one: Any) -> Any:
    if isinstance(one, BaseNamedTuple):
        kind = one.instance_class
        by_reference, parts = kind in BY_REFERENCE, [_described(part) for part in one]
        return (kind.__module__, kind.__qualname__, one.fields, by_reference, parts)
    return str(one)
