"""Passes tuples of arrays between kernels by reference.

numba passes the parts of a tuple as separate arguments, seven words for each array: hundreds of words for a
cluster's state. Writing these words at every call took half of a replay's time. A tuple of a class marked
`by_reference` is stored in memory instead, together with nested tuples of such classes, and only the address
is passed.

A kernel that makes a tuple in a loop overwrites the tuple of the previous iteration. This does harm only in
an `array_kernel`, which counts references. When it assigns a new tuple to a variable, it releases the arrays
of the old tuple, but finds the new arrays there. Therefore it must not assign tuples with new arrays to one
variable twice.

The extension points are numba's data models, lowering of named tuples, `box` and `unbox`. numba's version is
pinned in `constraints.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

import numba.cpython.tupleobj as of_numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.boxing import box_namedtuple, unbox_tuple
from numba.core.datamodel.models import DataModel, TupleModel
from numba.core.datamodel.registry import register_default
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_getattr_generic
from numba.core.pythonapi import NativeValue, _boxers, unbox
from numba.np.numpy_support import as_dtype

from rlsched.compile.reference import BY_REFERENCE


class ReferenceModel(DataModel):  # type: ignore[misc]
    """Represents a tuple by the address of the memory with its parts, and with the parts of nested tuples."""

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
        """Return the tuple's address, or the address of zeros if the variable has no value yet.

        numba counts references even of variables that have no value yet.
        """
        zeros = cgutils.add_global_variable(builder.module, self.struct, "zeros")
        zeros.linkage, zeros.global_constant = "internal", True
        zeros.initializer = ir.Constant(self.struct, None)
        return builder.select(cgutils.is_null(builder, value), zeros, value)

    def place(self, builder: Any, value: Any, position: int) -> Any:
        """Return the address of a part."""
        return cgutils.gep_inbounds(builder, value, 0, position)

    def part(self, builder: Any, value: Any, position: int) -> Any:
        """Return the value of a part."""
        model, place = self._models[position], self.place(builder, value, position)
        if isinstance(model, ReferenceModel):
            return place
        if model.get_data_type() == model.get_value_type():
            return builder.load(place)
        return model.load_from_data_pointer(builder, place)

    def put(self, builder: Any, value: Any, position: int, part: Any) -> None:
        """Write a part of a new tuple."""
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
    """Write the parts of the Python tuple `given` to the address `place`; yield their clean-up functions."""
    arrays = [position for position, kind in enumerate(model.fe_type) if type(kind) is types.Array]
    if arrays:
        _unbox_arrays(model, arrays, given, c, place, failed)
    for position, kind in enumerate(model.fe_type):
        if type(kind) is types.Array:
            continue
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


_WORD: Final = ir.IntType(64)
_UNBOX_ARRAYS: Final = "unbox_arrays"
_ITEMSIZE: Final = 3
"""Index of the word with the item size in an unboxed array (`numba.core.datamodel.models.ArrayModel`)."""


def _unbox_arrays(
    model: ReferenceModel, arrays: list[int], given: Any, c: Any, place: Any, failed: Any
) -> None:
    """Unbox the arrays of a tuple in a loop over a table of their positions, targets and item sizes.

    Without this loop, numba emits thirty instructions for each array. For a cluster's state, this code is
    longer than most kernels.
    """
    offsets = _offsets(c.context, model)
    table = [
        number
        for position in arrays
        for number in (position, offsets[position], as_dtype(model.fe_type[position].dtype).itemsize)
    ]
    rows = cgutils.global_constant(c.builder, "arrays", ir.Constant(ir.ArrayType(_WORD, len(table)), table))
    to_bytes = partial(c.builder.bitcast, typ=c.pyapi.voidptr)
    call = c.builder.call(_array_loop(c), (given, to_bytes(place), to_bytes(rows), _WORD(len(arrays))))
    with c.builder.if_then(call, likely=False):
        c.builder.store(cgutils.true_bit, failed)


@cache
def _offsets(context: Any, model: ReferenceModel) -> list[int]:
    """Return the memory offset of each part of a tuple, bytes."""
    return [
        model.struct.get_element_offset(context.target_data, position)
        for position in range(len(model.struct))
    ]


def _array_loop(c: Any) -> ir.Function:
    """Return the LLVM function `unbox_arrays(tuple, to, table, count)`, which unboxes a tuple's arrays.

    The LLVM function returns true, and sets a Python error, if an array could not be unboxed.
    """
    found = c.builder.module.globals.get(_UNBOX_ARRAYS)
    if found is not None:
        return found
    text, flag = c.pyapi.voidptr, ir.IntType(1)
    kind = ir.FunctionType(flag, [c.pyapi.pyobj, text, text, _WORD])
    made = ir.Function(c.builder.module, kind, _UNBOX_ARRAYS)
    made.linkage = "internal"
    made.attributes.add("noinline")
    builder = ir.IRBuilder(made.append_basic_block())
    api = c.context.get_python_api(builder)
    adapt = api.nrt_adapt_ndarray_from_python if c.context.enable_nrt else api.numba_array_adaptor
    given, to, table, count = made.args
    table = builder.bitcast(table, _WORD.as_pointer())
    get_type = ir.FunctionType(c.pyapi.pyobj, [c.pyapi.pyobj, api.py_ssize_t])
    get = cgutils.get_or_insert_function(c.builder.module, get_type, "PyTuple_GetItem")
    with cgutils.for_range(builder, count) as loop:
        row = builder.mul(loop.index, _WORD(3))
        position, offset, wanted = (
            builder.load(builder.gep(table, [builder.add(row, _WORD(word))])) for word in range(3)
        )
        place = builder.gep(to, [offset])
        error = adapt(builder.call(get, (given, position)), place)
        itemsize = builder.load(builder.gep(builder.bitcast(place, _WORD.as_pointer()), [_WORD(_ITEMSIZE)]))
        wrong = builder.or_(
            cgutils.is_not_null(builder, error), builder.icmp_unsigned("!=", itemsize, wanted)
        )
        with builder.if_then(wrong, likely=False):
            api.err_set_string("PyExc_TypeError", "an array was expected, of the type that the kernel is for")
            builder.ret(flag(1))
    builder.ret(flag(0))
    return made


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
