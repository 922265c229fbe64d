"""What numba's front end asks for millions of times while kernels are compiled, answered faster.

A cold start spends most of its time in numba's Python code. Here three answers are given without the work
behind them; what is compiled stays the same, word for word. The module is used by being imported
(`rlsched.jit`); numba's version is pinned in `constraints.txt`.

- Two sets of compiler flags are compared for every function that numba considers for a call. It makes a
  dictionary of thirty properties of each, twice.
- Every compilation installs two timers, which hear of every lock taken by all that it calls.
- Types have an abstract metaclass, though no class is registered as another's: `isinstance` need not ask it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from numba.core import event
from numba.core.targetconfig import TargetConfig
from numba.core.types.abstract import _TypeMetaclass


def _same(one: Any, other: Any) -> Any:
    """`TargetConfig.__eq__`."""
    if not isinstance(other, TargetConfig):
        return NotImplemented
    return one._values == other._values or one.values() == other.values()


@cache
def _defaults(kind: type) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}  # type: ignore[attr-defined]


def _values(one: Any) -> dict[str, Any]:
    """`TargetConfig.values`."""
    kind: Any = type(one)
    return {**_defaults(kind), **one._values}


def _hash(one: Any) -> int:
    """`TargetConfig.__hash__`: numba's own is that of the names of the options, too."""
    return hash(type(one))


def _no_timer(_kind: str, _callback: Any) -> AbstractContextManager[None]:
    """`event.install_timer`, without a timer."""
    return nullcontext()


TargetConfig.values, TargetConfig.__eq__, TargetConfig.__hash__ = _values, _same, _hash
event.install_timer = _no_timer
_TypeMetaclass.__instancecheck__ = type.__instancecheck__  # type: ignore[method-assign]
_TypeMetaclass.__subclasscheck__ = type.__subclasscheck__  # type: ignore[method-assign]
