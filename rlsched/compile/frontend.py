"""Faster versions of functions that numba's front end calls millions of times while it compiles kernels.

A start without cached kernels spends most of its time in numba's Python code. This module replaces a few of
numba's functions with faster ones, which give the same compiled code. The replacement takes effect when
`rlsched.compile.jit` imports this module. numba's version is pinned in `constraints.txt`. The replaced parts
of numba are slow for these reasons:

- For every possible target of a call, numba compares two sets of compiler flags, by two dictionaries of
  thirty properties of each set.
- Every compilation installs two timers, which receive an event for every lock. Every call of LLVM notifies
  two listeners of its lock.
- Types have an abstract metaclass, which makes `isinstance` slow, although no class is registered as a
  virtual subclass.
- The hash of a type combines the hashes of all types inside it. The type of a cluster's state contains
  several hundred types.
- The type of `a + b` is searched among thirty overloads each time, although it depends only on the argument
  types.
- For each access to an array, numba makes a class, and usually searches all registries.
- The type of an attribute and the size of a type never change, but are computed again. For a size, LLVM
  parses a module.
- At every call of a function, numba selects and sorts the function's templates for this processor again.
- The variables of a statement are found by a search through all parts of the statement, including strings.
- For each function, numba imports thirty modules again, to check for new registrations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

from llvmlite.binding import ffi
from numba.core import event, ir, types, utils
from numba.core.base import BaseContext as BaseTargetContext
from numba.core.cgutils import create_struct_proxy
from numba.core.cpu import CPUContext
from numba.core.targetconfig import ConfigStack, TargetConfig
from numba.core.types.abstract import Type, _TypeMetaclass
from numba.core.types.functions import BaseFunction
from numba.core.typing import context as typing_context
from numba.core.typing.context import BaseContext
from numba.np import arrayobj

# ---- flags, timers, metaclass ---------------------------------------------------------------------


def _same(one: Any, other: Any) -> Any:
    """Replaces `TargetConfig.__eq__`."""
    if not isinstance(other, TargetConfig):
        return NotImplemented
    return one._values == other._values or one.values() == other.values()


@cache
def _defaults(kind: type) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}  # type: ignore[attr-defined]


def _values(one: Any) -> dict[str, Any]:
    """Replaces `TargetConfig.values`."""
    kind: Any = type(one)
    return {**_defaults(kind), **one._values}


def _hash(one: Any) -> int:
    """Replaces `TargetConfig.__hash__`; numba's own function also hashes the names of the options."""
    return hash(type(one))


def _no_timer(_kind: str, _callback: Any) -> AbstractContextManager[None]:
    """Replaces `event.install_timer`; installs no timer."""
    return nullcontext()


TargetConfig.values, TargetConfig.__eq__, TargetConfig.__hash__ = _values, _same, _hash
event.install_timer = _no_timer
ffi.lib._lock._cblist.clear()
_TypeMetaclass.__instancecheck__ = type.__instancecheck__  # type: ignore[method-assign]
_TypeMetaclass.__subclasscheck__ = type.__subclasscheck__  # type: ignore[method-assign]


# ---- hashes of types ------------------------------------------------------------------------------


class _Kept:
    """A stored hash. Pickling leaves out its value, because hashes of strings differ between processes."""

    __slots__ = ("value",)

    def __init__(self, value: int | None = None) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Kept, ()


def _hash_once(one: Any) -> int:
    """Replaces `Type.__hash__` of types that contain other types; the hash is computed once."""
    kept = one.__dict__.get("_hash_kept")
    if kept is None or kept.value is None:
        kept = one._hash_kept = _Kept(hash(one.key))
    return int(kept.value)


def _same_type(one: Any, other: Any) -> bool:
    """Replaces `Type.__eq__`."""
    return one is other or (one.__class__ is other.__class__ and one.key == other.key)


Type.__eq__ = _same_type  # type: ignore[method-assign]
for _kind in (types.BaseTuple, types.Array, types.Record):  # type: ignore[attr-defined]
    _kind.__hash__ = _hash_once  # type: ignore[method-assign]


# ---- types of calls and attributes ---------------------------------------------------------------

_PLAIN: Final = (types.Integer, types.Float, types.Boolean, types.Array, types.Record)
_get_call_type = BaseFunction.get_call_type


def _call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    """Replaces `BaseFunction.get_call_type`."""
    if kws or not all(type(one) in _PLAIN for one in args):
        return _get_call_type(self, context, args, kws)
    known, said = self.__dict__.setdefault("_of_plain", {}), (args, ConfigStack.top_or_none())
    found = known.get(said)
    if found is None:
        sig: Any = _get_call_type(self, context, args, kws)
        found = known[said] = sig, self._impl_keys[sig.args]
    self._impl_keys[found[0].args] = found[1]
    return found[0]


BaseFunction.get_call_type = _call_type  # type: ignore[method-assign]

_HOLDERS: Final = (types.Array, types.Record, types.NamedTuple)  # type: ignore[attr-defined]
_getattr_template = BaseContext.find_matching_getattr_template


def _attribute(context: Any, kind: Any, name: str) -> Any:
    """Replaces `BaseContext.find_matching_getattr_template`.

    Methods are not cached, because their types record the calls.
    """
    if type(kind) not in _HOLDERS:
        return _getattr_template(context, kind, name)
    known = context.__dict__.setdefault("_attributes_of_holders", {})
    found = known.get((kind, name))
    if found is None:
        found = _getattr_template(context, kind, name)
        if found is not None and not isinstance(found["return_type"], types.Callable):
            known[kind, name] = found
    return found


BaseContext.find_matching_getattr_template = _attribute

_order = utils.order_by_target_specificity
_ordered: dict[tuple[Any, tuple[Any, ...]], list[Any]] = {}


def _by_target(target: Any, templates: list[Any], fnkey: Any = "") -> list[Any]:
    """Replaces `utils.order_by_target_specificity`; each list of templates is sorted once per target."""
    said = target, tuple(templates)
    found = _ordered.get(said)
    if found is None:
        found = _ordered[said] = _order(target, templates, fnkey)
    return found


utils.order_by_target_specificity = typing_context.order_by_target_specificity = _by_target


# ---- sizes of types -------------------------------------------------------------------------------

_get_abi_sizeof = BaseTargetContext.get_abi_sizeof
_sizes: dict[str, int] = {}


def _abi_sizeof(context: Any, kind: Any) -> int:
    """Replaces `BaseContext.get_abi_sizeof` for the only target in use."""
    said = str(kind)
    found = _sizes.get(said)
    if found is None:
        found = _sizes[said] = _get_abi_sizeof(context, kind)
    return found


BaseTargetContext.get_abi_sizeof = _abi_sizeof


# ---- array attributes -----------------------------------------------------------------------------

_make_array = arrayobj.make_array


@cache
def _array_proxy(kind: Any) -> Any:
    """Replaces `arrayobj.make_array`."""
    made = _make_array(kind)
    if type(kind) is types.Array:
        made._make_refs = create_struct_proxy(kind)._make_refs
    return made


arrayobj.make_array = _array_proxy


# ---- variables of a statement ---------------------------------------------------------------------


_NO_VARS: Final = frozenset((str, int, float, bool, type(None), ir.Loc))


def _add_vars(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is ir.Var:
        found.append(value)
    elif kind is list or kind is tuple:
        for one in value:
            if type(one) not in _NO_VARS:
                _add_vars(one, found)
    elif kind is dict:
        for one in value.values():
            if type(one) not in _NO_VARS:
                _add_vars(one, found)
    elif isinstance(value, ir.Inst):
        found += value.list_vars()
    elif isinstance(value, list | tuple):
        for one in value:
            _add_vars(one, found)


def _list_vars(_self: Any, value: Any) -> list[Any]:
    """Replaces `Inst._rec_list_vars`."""
    found: list[Any] = []
    _add_vars(value, found)
    return found


ir.Inst._rec_list_vars = _list_vars


# ---- registries -----------------------------------------------------------------------------------

_load_registries = CPUContext.load_additional_registries


def _load_registries_once(context: Any) -> None:
    """Replaces `CPUContext.load_additional_registries`: later imports would register nothing new."""
    if not context.__dict__.get("_has_registries"):
        _load_registries(context)
        context._has_registries = tuple(context._registries)
    for registry in context._has_registries:
        context.install_registry(registry)


CPUContext.load_additional_registries = _load_registries_once
