"""Serialises an object graph to bytes, called a *picture*, without pickle.

Loading a picture never runs code from the data. A picture can contain plain values, containers, numpy arrays,
and objects of this package's classes. References to the same object are preserved. Only the code that made a
picture can load it. Callers must therefore store `code_digest` with the picture, and compare the digests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
import zlib
from collections import OrderedDict, deque
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import rlsched
from rlsched.cluster import arrays as cluster_arrays
from rlsched.cluster import dials as dial_arrays
from rlsched.models import arrays as model_arrays

_ROOT = Path(rlsched.__file__).resolve().parent
_FOLDERS = ("broker", "cluster", "decide", "energy", "models", "wire", "workload")
"""Packages whose classes a picture (serialised object graph) can contain; `code_digest` covers their code."""
_LIST, _TUPLE, _DICT, _SET, _DEQUE, _ARRAY, _SCALAR, _OBJECT, _AGAIN, _ORDERED = range(10)
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_RECORDS: dict[str, np.dtype[Any]] = {
    f"{module.__name__}.{name}": value
    for module in (cluster_arrays, dial_arrays, model_arrays)
    for name, value in vars(module).items()
    if isinstance(value, np.dtype) and value.names
}
_UNMADE = object()
_encoder = msgspec.msgpack.Encoder()


class PictureError(Exception):
    """An object cannot be serialised, or a picture (the serialised bytes) cannot be read."""


@cache
def code_digest() -> str:
    """Return a hash of the code on which pictures (serialised object graphs) depend."""
    hasher = hashlib.sha256(f"{rlsched.__version__} {np.__version__}".encode())
    for folder in _FOLDERS:
        for source in sorted((_ROOT / folder).rglob("*.py")):
            hasher.update(source.relative_to(_ROOT).as_posix().encode() + b"\0" + source.read_bytes())
    return hasher.hexdigest()[:32]


def pack(thing: object, as_new: dict[type, dict[str, object]] | None = None) -> bytes:
    """Serialise an object and all objects to which it refers. Return the bytes, a *picture*.

    Args:
        thing: The object.
        as_new: Class -> field -> value that is stored for this field in place of an object's own value.

    Raises:
        PictureError: the graph contains an unsupported object.
    """
    packer = _Packer(as_new or {})
    try:
        packed = packer.plain(thing)
        return zlib.compress(_encoder.encode([packer.classes, packed]), 1)
    except PictureError:
        raise
    except Exception as error:  # any error: the caller continues without a picture
        raise PictureError(f"{type(error).__name__}: {error}") from error


def unpack(picture: bytes) -> Any:
    """Restore the object from a picture (the bytes that `pack` returned).

    Raises:
        PictureError: the data is not a picture, or was made by other code.
    """
    try:
        classes, packed = msgspec.msgpack.decode(zlib.decompress(picture))
        return _Unpacker(classes).thing(packed)
    except PictureError:
        raise
    except (
        zlib.error,
        msgspec.MsgspecError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ImportError,
    ) as error:
        raise PictureError(f"{type(error).__name__}: {error}") from error


class _Packer:
    """Converts an object graph to data that MessagePack can encode.

    Attributes:
        classes: [class name, field name, ...] of each class in the graph.
    """

    def __init__(self, as_new: dict[type, dict[str, object]]) -> None:
        self._as_new = as_new
        self.classes: list[list[str]] = []
        self._numbers: dict[type, int] = {}
        self._known: dict[int, int] = {}
        self._kept: list[object] = []  # keeps objects alive, so that no id is reused

    def plain(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in _PLAIN:
            return thing
        known = self._known.get(id(thing))
        if known is not None:
            return [_AGAIN, known]
        if kind is tuple:
            return [_TUPLE, *map(self.plain, thing)]
        self._known[id(thing)] = len(self._kept)
        self._kept.append(thing)
        if kind is list:
            return [_LIST, *map(self.plain, thing)]
        if kind is dict or kind is OrderedDict:
            flat = [_DICT if kind is dict else _ORDERED]
            for key, value in thing.items():
                flat += (self.plain(key), self.plain(value))
            return flat
        if kind is set or kind is frozenset:
            return [_SET, kind is frozenset, *map(self.plain, thing)]
        if kind is deque:
            return [_DEQUE, thing.maxlen, *map(self.plain, thing)]
        if isinstance(thing, np.ndarray):
            return [
                _ARRAY,
                _dtype_name(thing.dtype),
                list(thing.shape),
                isinstance(thing, np.recarray),
                bool(thing.flags.writeable),
                np.ascontiguousarray(thing).tobytes(),
            ]
        if isinstance(thing, np.generic):
            return [_SCALAR, _dtype_name(thing.dtype), thing.tobytes()]
        return self._object(thing, kind)

    def _object(self, thing: Any, kind: type) -> list[Any]:
        fields = _fields(kind)
        number = self._numbers.get(kind)
        names = sorted(vars(thing)) if fields is None else fields
        if number is None:
            _class_of(_name(kind))
            number = self._numbers[kind] = len(self.classes)
            self.classes.append([_name(kind), *names])
        elif self.classes[number][1:] != names:
            raise PictureError(f"two objects of {kind.__name__} have different fields: {', '.join(names)}")
        new = self._as_new.get(kind, {})
        return [
            _OBJECT,
            number,
            *(self.plain(new[name] if name in new else getattr(thing, name)) for name in names),
        ]


class _Unpacker:
    """Restores an object graph from the data that `_Packer` made."""

    def __init__(self, classes: list[list[str]]) -> None:
        self._classes = []
        for name, *names in classes:
            kind = _class_of(name)
            fields = _fields(kind)
            if fields is not None and fields != names:
                raise PictureError(f"the fields of {name} have changed to {', '.join(fields)}")
            self._classes.append((kind, names))
        self._known: list[Any] = []

    def thing(self, packed: Any) -> Any:
        if type(packed) is not list:
            return packed
        tag = packed[0]
        if tag == _TUPLE:
            return tuple(map(self.thing, packed[1:]))
        if tag == _AGAIN:
            known = self._known[packed[1]]
            if known is _UNMADE:
                raise PictureError("expected an object without cycles, got an object that contains itself")
            return known
        place = len(self._known)
        self._known.append(_UNMADE)
        made: Any
        if tag == _LIST:
            made = self._known[place] = []
            made += map(self.thing, packed[1:])
        elif tag in (_DICT, _ORDERED):
            made = self._known[place] = {} if tag == _DICT else OrderedDict()
            flat = iter(packed)
            next(flat)
            for packed_key in flat:
                key = self.thing(packed_key)  # the key before its value, in the order of packing
                made[key] = self.thing(next(flat))
        elif tag == _SET:
            made = (frozenset if packed[1] else set)(map(self.thing, packed[2:]))
        elif tag == _DEQUE:
            made = deque(map(self.thing, packed[2:]), packed[1])
        elif tag == _ARRAY:
            made = _array(*packed[1:])
        elif tag == _SCALAR:
            made = np.frombuffer(packed[2], _dtype(packed[1]))[0]
        elif tag == _OBJECT:
            return self._object(place, packed)
        else:
            raise PictureError(f"expected a known tag, got {tag!r}")
        self._known[place] = made
        return made

    def _object(self, place: int, packed: list[Any]) -> Any:
        kind, names = self._classes[packed[1]]
        if len(names) != len(packed) - 2:
            raise PictureError(f"{kind.__name__}: expected {len(names)} fields, got {len(packed) - 2}")
        if issubclass(kind, tuple):
            made = self._known[place] = tuple.__new__(kind, map(self.thing, packed[2:]))
            return made
        if issubclass(kind, msgspec.Struct):
            values = map(self.thing, packed[2:])
            made = self._known[place] = kind(**dict(zip(names, values, strict=True)))
            return made
        made = self._known[place] = object.__new__(kind)
        for name, value in zip(names, packed[2:], strict=True):
            object.__setattr__(made, name, self.thing(value))
        return made


@cache
def _fields(kind: type) -> list[str] | None:
    """Return the field names that a class declares; None for a plain class, which declares no fields."""
    if issubclass(kind, msgspec.Struct):
        return [one.name for one in msgspec.structs.fields(kind)]
    if issubclass(kind, tuple):
        return list(getattr(kind, "_fields", ()))
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _class_of(name: str) -> type:
    """Return a class of this package, given its name.

    Raises:
        PictureError: there is no such class.
    """
    module, _, qualname = name.partition(":")
    package, _, rest = module.partition(".")
    if package != "rlsched" or rest.partition(".")[0] not in _FOLDERS:
        raise PictureError(f"objects of {name} cannot be serialised")
    found = getattr(importlib.import_module(module), qualname, None)
    if not isinstance(found, type) or (issubclass(found, tuple) and not hasattr(found, "_fields")):
        raise PictureError(f"objects of {name} cannot be serialised")
    return found


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.names:
        for name, known in _RECORDS.items():
            if known.descr == dtype.descr and known.itemsize == dtype.itemsize:
                return name
        raise PictureError(f"cannot serialise a numpy record array of dtype {dtype}")
    if dtype.hasobject:
        raise PictureError(f"cannot serialise a numpy array of dtype {dtype}")
    return dtype.str


def _dtype(name: str) -> np.dtype[Any]:
    return _RECORDS[name] if name in _RECORDS else np.dtype(name)


def _array(name: str, shape: list[int], is_records: bool, is_writeable: bool, data: bytes) -> Any:
    dtype = _dtype(name)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or size != len(data):
        raise PictureError(f"an array of {name} {shape}: expected {size} bytes, got {len(data)}")
    made = np.zeros(shape, dtype)
    made.ravel().view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    if is_records:
        made = made.view(np.recarray)
    made.flags.writeable = is_writeable
    return made
