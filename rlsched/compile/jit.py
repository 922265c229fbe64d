"""Defines the decorator `kernel`: numba's njit, with a separate entry for Python and a cache on disk."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import EXTENDED_ARG, opmap
from types import FunctionType
from typing import Any, TypeVar, cast

_LOAD_GLOBAL = opmap["LOAD_GLOBAL"]
_BLAS = "scipy.linalg.cython_blas"

if _BLAS not in sys.modules:
    # numba loads scipy's BLAS at its import, which takes a fifth of a short command's time; no kernel here
    # calls it. It is hidden during the import.
    sys.modules[_BLAS] = None  # type: ignore[assignment]
    import numba.np.arraymath

    del sys.modules[_BLAS]

import numba  # noqa: E402 - see above
import numpy as np  # noqa: E402
from numba.core.types import Integer, int64, unliteral  # type: ignore[attr-defined]  # noqa: E402

import rlsched.compile.frontend  # noqa: E402
import rlsched.compile.packing  # noqa: E402, F401 - how kernels pass tuples of arrays
from rlsched.compile.kernel_cache import KernelCache  # noqa: E402
from rlsched.compile.linking import EntryCompiler, InsideCompiler, SharedCompiler  # noqa: E402
from rlsched.compile.reference import BY_REFERENCE  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])
COLLECTED_AT = 400_000
"""Number of new objects at which the garbage collector runs during compilation: it takes about 0.5 s."""


class Kernel:
    """A compiled function. Kernels call the function directly; Python calls it through a separate entry.

    The entry unpacks the arrays of a state, and takes about as long to compile as most kernels. Therefore it
    is made only at the first call from Python.

    Attributes:
        py_func: The original Python function.
        kind: How the function is compiled: `kernel` or `array_kernel`; with the prefix `shared_` if the
            decorator `shared` gives the kernel machine code of its own.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.kind = function, kind
        self._options = {
            "error_model": "numpy",
            "_nrt": "array" in kind,
            "no_cfunc_wrapper": True,
        }
        self._entry: Any = None
        self._stateless: Any = None  # entry of a kernel without a state argument
        self._known: dict[tuple[object, ...], Callable[..., Any]] = {}
        self._known_for: object = None
        part, compiler = ("shared", SharedCompiler) if "shared" in kind else ("inside", InsideCompiler)
        self._inside = self._dispatcher(part, no_cpython_wrapper=True, pipeline_class=compiler)

    def _dispatcher(self, part: str, **more: Any) -> Any:
        made = numba.njit(**self._options, **more)(self.py_func)
        made._cache = cached = KernelCache(cast("FunctionType", self.py_func), part, lambda: called(self))
        compile_now = made.compile

        def compile_once(sig: Any) -> Any:
            wide = tuple(widened(one) for one in sig)
            found = made.overloads.get(wide)
            if found is not None:
                return found.entry_point
            with cached.alone(wide), _no_collection():
                return compile_now(wide)

        made.compile = compile_once
        return made

    @property
    def _numba_type_(self) -> Any:
        return self._inside._numba_type_

    def __call__(self, *args: Any) -> Any:
        """Call the kernel from Python. Compile the entry first, if necessary."""
        if self._stateless is not None:
            return self._stateless(*args)
        latest = _LATEST.get(type(args[0])) if args else None
        if latest is not None and args[0] is latest.state and self._known_for is latest.mark:
            entry = self._known.get(tuple(map(type, args))) or self._known.get(tuple(map(_look, args[1:])))
            if entry is not None:
                return entry(*args)
        return self._find_and_call(args)

    def _find_and_call(self, args: tuple[Any, ...]) -> Any:
        """Let numba determine the argument types, which takes 20 us for a state, and call the kernel."""
        found = self._made_entry()(*args)
        if args and type(args[0]) in BY_REFERENCE:
            latest = _LATEST.get(type(args[0]))
            if latest is not None and args[0] is latest.state:
                self._remember(args, latest)
            else:
                _LATEST[type(args[0])] = _Latest(args[0])
        else:
            self._stateless = self._entry
        return found

    def _made_entry(self) -> Any:
        if self._entry is None:
            self._entry = self._dispatcher("entries", pipeline_class=EntryCompiler)
        return self._entry

    def compile_for(self, *args: Any) -> None:
        """Compile or load the entry for calls from Python with these argument types; do not call it."""
        entry = self._made_entry()
        entry.compile(tuple(widened(entry.typeof_pyval(one)) for one in args))

    def bound(self, *args: Any) -> Callable[..., Any]:
        """Return the compiled function for these argument types, for callers that never change the types.

        The returned function does not check its arguments, and misreads other types and memory layouts.
        """
        entry = self._made_entry()
        wanted = tuple(widened(entry.typeof_pyval(one)) for one in args)
        entry.compile(wanted)
        return cast("Callable[..., Any]", entry.overloads[wanted].entry_point)

    def _remember(self, args: tuple[Any, ...], latest: _Latest) -> None:
        """Store the compiled function for `args`; later calls with the same state and types look it up."""
        others = args[1:]
        if not all(map(_shows_its_type, others)):
            return
        wanted = tuple(widened(self._entry.typeof_pyval(one)) for one in others)
        fits = [made.entry_point for sig, made in self._entry.overloads.items() if sig[1:] == wanted]
        if len(fits) != 1:
            return
        if self._known_for is not latest.mark:
            self._known, self._known_for = {}, latest.mark
        numbers = all(type(one) in _NUMBERS for one in others)
        self._known[tuple(map(type, args)) if numbers else tuple(map(_look, others))] = fits[0]


class _Latest:
    """The latest tuple of a class, for example the latest state, that Python passed to a kernel.

    Attributes:
        state: The tuple of arrays; this reference keeps it alive.
        mark: Unique for each tuple; kernels store the mark with their data about the tuple.
    """

    def __init__(self, state: Any) -> None:
        self.state, self.mark = state, object()


_LATEST: dict[type, _Latest] = {}
"""By class of tuple: the latest tuple that Python passed to a kernel. States and runs are such classes."""
_NUMBERS = frozenset((int, float, bool))
_ARRAYS = frozenset((np.ndarray, np.recarray))
_dtype: Callable[[Any], np.dtype[Any]] = np.ndarray.dtype.__get__
"""Reads an array's `dtype` without the overhead of attribute access in `np.recarray`."""


def _look(one: Any) -> object:
    """Return a key of an argument's numba type: arguments with equal keys have equal types."""
    kind = type(one)
    if kind in _ARRAYS:
        return kind, _dtype(one), one.ndim, one.flags.num
    if isinstance(one, tuple):
        return kind, *map(_look, one)
    return kind


def _shows_its_type(one: Any) -> bool:
    """Return whether `_look(one)` identifies the numba type: True for numbers, arrays, and tuples of them."""
    if isinstance(one, tuple):
        return all(map(_shows_its_type, one))
    return type(one) in _NUMBERS or type(one) in _ARRAYS


def called(kernel: Kernel) -> set[FunctionType]:
    """Return the functions of all kernels that a kernel calls, directly or indirectly."""
    found, left = set[FunctionType](), [kernel]
    while left:
        for value in _referred(left.pop().py_func).values():
            if isinstance(value, Kernel) and value.py_func not in found:
                found.add(cast("FunctionType", value.py_func))
                left.append(value)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector: its scans of numba's objects take 10 % of the compile time.

    New objects are collected after each `COLLECTED_AT` of them. One collection of all objects of 400 kernels
    would block all threads for 2 s.
    """
    was_enabled = gc.isenabled()  # False: a nested compilation
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] >= COLLECTED_AT:
            gc.collect(0)
        if was_enabled:
            gc.enable()


def widened(argument: Any) -> Any:
    """Return the numba type for passing an argument: integers have 64 bits, and are never constants.

    Otherwise a kernel would be compiled for each integer width and each constant that its callers pass.
    """
    plain = unliteral(argument)
    return int64 if isinstance(plain, Integer) and plain.signed else plain  # type: ignore[attr-defined]


def kernel(function: F) -> F:
    """Compile `function` in nopython mode at its first call, or load the compiled code from the cache.

    The function is compiled without reference counts, so it may make views, but no new arrays. Counting the
    references to a state's arrays at every call took five times as long as the work itself. `_nrt` is numba's
    internal switch for reference counts.
    """
    return _compiled(function, "kernel")


def array_kernel(function: F) -> F:
    """Compile `function` like `kernel`, but with reference counts, for a function that makes arrays."""
    return _compiled(function, "array_kernel")


def shared(function: F) -> F:
    """Compile a kernel only once: all kernels that call it use the same machine code.

    Use it for large kernels with many callers. Such a kernel is compiled once instead of once per entry, but
    never inlined.
    """
    given = cast("Kernel", function)
    return cast("F", _compiled(given.py_func, f"shared_{given.kind}"))


def _compiled(function: F, kind: str) -> F:
    return cast("F", Kernel(function, kind))


# ---- constants of the compiler --------------------------------------------------------------------


class CompileTime:
    """An *open name*: a global name in a kernel that has no value until `specialise` gives it one.

    The value is a constant or a kernel. A kernel that reads an open name, or calls such a kernel, is a
    *template*.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        raise TypeError(f"open name {self.name} has no value: call `specialise` with a value for it")


def compile_time(name: str) -> Any:
    """Return an open name: a global name of kernels that gets its value later (`CompileTime`).

    `specialise` sets the value. Branches that this value excludes are not compiled.
    """
    return CompileTime(name)


_OPEN: dict[Kernel, frozenset[str]] = {}
_MADE: dict[tuple[Any, ...], Kernel] = {}


def open_names(template: Kernel) -> frozenset[str]:
    """Return the open names (`CompileTime`) of a kernel and of the kernels that it calls."""
    found = _OPEN.get(template)
    if found is None:
        _OPEN[template] = frozenset()  # for recursive calls
        names: set[str] = set()
        for value in _referred(template.py_func).values():
            if isinstance(value, CompileTime):
                names.add(value.name)
            elif isinstance(value, Kernel):
                names |= open_names(value)
        found = _OPEN[template] = frozenset(names)
    return found


def specialise(template: F, **bound: Any) -> F:
    """Return a kernel made from a template, and from the templates that it calls.

    Calls with the same template and the same values return the same kernel.

    Args:
        template: The template; a kernel without open names is returned unchanged.
        **bound: Value of each open name: a number or a kernel. The kernel can itself be a template with these
            names.

    Raises:
        TypeError: an open name has no value.
    """
    return cast("F", _specialised(cast("Kernel", template), bound))


def _specialised(template: Kernel, bound: dict[str, Any]) -> Kernel:
    names = open_names(template)
    if not names:
        return template
    missing = sorted(names - bound.keys())
    if missing:
        raise TypeError(f"{template.py_func.__name__} has open names without a value: {', '.join(missing)}")
    wanted = {name: bound[name] for name in bound if name in _needed(names, bound)}
    key = (template, *sorted(wanted.items(), key=lambda one: one[0]))
    made = _MADE.get(key)
    if made is None:
        function = template.py_func
        scope = dict(function.__globals__)
        for name, value in _referred(function).items():
            if isinstance(value, CompileTime):
                value = bound[value.name]
            if isinstance(value, Kernel):
                value = _specialised(value, bound)
            scope[name] = value
        copied = FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        copied.__doc__ = function.__doc__
        made = _MADE[key] = Kernel(copied, template.kind)
    return made


def _needed(names: frozenset[str], bound: dict[str, Any]) -> set[str]:
    """Return `names` and the open names of all kernels that `bound` gives as values of these names."""
    needed, left = set(names), list(names)
    while left:
        value = bound.get(left.pop())
        new = open_names(value) - needed if isinstance(value, Kernel) else frozenset()
        needed |= new
        left += new
    return needed


def _referred(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the values of the global names that a function reads, by name."""
    code, scope, high = function.__code__, function.__globals__, 0
    found: dict[str, Any] = {}
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument += high
        high = argument << 8 if operation == EXTENDED_ARG else 0
        if operation == _LOAD_GLOBAL:
            name = code.co_names[argument >> 1]  # the lowest bit: whether it is about to be called
            if name in scope:
                found[name] = scope[name]
    return found
