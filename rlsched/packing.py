"""How tuples of arrays are passed between kernels: by reference.

numba passes a tuple's parts as arguments of their own, seven words an array: hundreds for a cluster's state.
To write them out at every call took half of a replay's time. A class marked `by_reference` lies in memory
instead, with tuples of such classes inside of it, and its address is passed.

Named tuples do not change, so nobody can tell, but for one thing: what a kernel makes in a loop lies where it
made the one before. So an `array_kernel`, which counts references, must not give one variable such a tuple,
with arrays of its own, twice.

The extension points are numba's data models, its lowering of named tuples, `box` and `unbox` (its version is
pinned in `constraints.txt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba.cpython.tupleobj as of_numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.datamodel.models import DataModel, TupleModel
from numba.core.datamodel.registry import register_default
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_getattr_generic
from numba.core.pythonapi import NativeValue, _boxers, unbox

from rlsched.reference import BY_REFERENCE


class ReferenceModel(DataModel):  # type: ignore[misc]
    """A tuple as the address of its parts, which lie behind one another, tuples inside of it with theirs."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind)
        self._models = [manager.lookup(part) for part in kind]
        self.struct = ir.LiteralStructType([model.get_data_type() for model in self._models])

    def get_value_type(self) -> Any:
        return self.struct.as_pointer()

    def get_data_type(self) -> Any:
        return self.struct

    def get_return_type(self) -> Any:
        return self.struct

    def as_data(self, builder: Any, value: Any) -> Any:
        return builder.load(value)

    def from_data(self, builder: Any, value: Any) -> Any:
        return cgutils.alloca_once_value(builder, value)

    as_return, from_return = as_data, from_data

    def as_argument(self, _: Any, value: Any) -> Any:
        return value

    def from_argument(self, _: Any, value: Any) -> Any:
        for says in ("noalias", "captures(none)"):
            value.add_attribute(says)
        return value

    def inner_models(self) -> list[Any]:
        return self._models

    def traverse(self, builder: Any) -> list[tuple[Any, Callable[[Any], Any]]]:
        def getter(position: int) -> Callable[[Any], Any]:
            return lambda value: self.part(builder, self._or_zeros(builder, value), position)

        return [(kind, getter(position)) for position, kind in enumerate(self._fe_type)]

    def _or_zeros(self, builder: Any, value: Any) -> Any:
        """The address, or that of zeros where there is none yet: of variables without a value, too, numba
        counts the references."""
        zeros = cgutils.add_global_variable(builder.module, self.struct, "zeros")
        zeros.linkage, zeros.global_constant = "internal", True
        zeros.initializer = ir.Constant(self.struct, None)
        return builder.select(cgutils.is_null(builder, value), zeros, value)

    def place(self, builder: Any, value: Any, position: int) -> Any:
        """Where a part lies."""
        return cgutils.gep_inbounds(builder, value, 0, position)

    def part(self, builder: Any, value: Any, position: int) -> Any:
        """A part's value."""
        model, place = self._models[position], self.place(builder, value, position)
        if isinstance(model, ReferenceModel):
            return place
        if model.get_data_type() == model.get_value_type():
            return builder.load(place)
        return model.load_from_data_pointer(builder, place)

    def put(self, builder: Any, value: Any, position: int, part: Any) -> None:
        """Write a part while the tuple is made."""
        model = self._models[position]
        builder.store(model.as_data(builder, part), self.place(builder, value, position))


@register_default(types.NamedTuple)  # type: ignore[untyped-decorator, attr-defined]
def _model(manager: Any, kind: Any) -> Any:
    chosen = ReferenceModel if kind.instance_class in BY_REFERENCE else TupleModel
    return chosen(manager, kind)


def _reference(context: Any, kind: Any) -> ReferenceModel | None:
    model = context.data_model_manager[kind]
    return model if isinstance(model, ReferenceModel) else None


@lower_getattr_generic(types.NamedTuple)  # type: ignore[untyped-decorator, attr-defined]
def _get(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    position, model = kind.fields.index(name), _reference(context, kind)
    if model is None:
        part = builder.extract_value(value, position)
    else:
        part = model.part(builder, value, position)
    return impl_ret_borrowed(context, builder, kind[position], part)


@lower_builtin(types.NamedTupleClass, types.VarArg(types.Any))  # type: ignore[untyped-decorator, attr-defined]
def _make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    model = _reference(context, sig.return_type)
    if model is None:
        return of_numba.namedtuple_constructor(context, builder, sig, args)
    made = cgutils.alloca_once(builder, model.struct)
    for position, part in enumerate(args):
        cast = context.cast(builder, part, sig.args[position], sig.return_type[position])
        model.put(builder, made, position, cast)
    return impl_ret_borrowed(context, builder, sig.return_type, made)


@unbox(types.NamedTuple)  # type: ignore[untyped-decorator, attr-defined]
def _unbox(kind: Any, given: Any, c: Any) -> Any:
    model = _reference(c.context, kind)
    if model is None:
        return unbox_tuple(kind, given, c)
    made = cgutils.alloca_once(c.builder, model.struct)
    failed = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    cleanups = list(_unbox_into(model, given, c, made, failed))

    def cleanup() -> None:
        for one in reversed(cleanups):
            one()

    return NativeValue(made, cleanup=cleanup if cleanups else None, is_error=c.builder.load(failed))


def _unbox_into(
    model: ReferenceModel, given: Any, c: Any, place: Any, failed: Any
) -> Iterator[Callable[[], None]]:
    """Unbox a tuple to where it shall lie. Its class says how many parts it has."""
    for position, kind in enumerate(model.fe_type):
        part, inner = c.pyapi.tuple_getitem(given, position), _reference(c.context, kind)
        if inner is not None:
            yield from _unbox_into(inner, part, c, model.place(c.builder, place, position), failed)
            continue
        native = c.unbox(kind, part)
        model.put(c.builder, place, position, native.value)
        with c.builder.if_then(native.is_error, likely=False):
            c.builder.store(cgutils.true_bit, failed)
        if native.cleanup is not None:
            yield native.cleanup


def _box(kind: Any, value: Any, c: Any) -> Any:
    model = _reference(c.context, kind)
    if model is None:
        return box_namedtuple(kind, value, c)
    parts = c.pyapi.tuple_new(kind.count)
    for position, of_part in enumerate(kind):
        c.pyapi.tuple_setitem(parts, position, c.box(of_part, model.part(c.builder, value, position)))
    named_tuple = c.pyapi.unserialize(c.pyapi.serialize_object(kind.instance_class))
    given = c.pyapi.call(named_tuple, parts)
    c.pyapi.decref(named_tuple)
    c.pyapi.decref(parts)
    return given


_boxers.functions[types.NamedTuple] = _box  # type: ignore[attr-defined]
