"""Messages of every kind with values at the limits of their fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

_INTS = (0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**31) - 1, -(2**63))
_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-9, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan, 1.8e9)
_WORDS = ("", "n0", "n1", "x", "\0", "\x1b[2J", "a\nb", "..", "/", "ü" * 40, "𝄞", "=", "-rf", "x" * 5_000)


def make(kind: type, chance: Random, likely: dict[str, Sequence[Any]]) -> Any:
    """A message of this kind; fields named in `likely` mostly have values from there."""
    facts = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if not field.required and chance.random() < 0.3:
            continue
        known = likely.get(field.name, ())
        usual = bool(known) and chance.random() < 0.8
        facts[field.name] = chance.choice(known) if usual else _value(field.type, chance, likely)
    return kind(**facts)


def _value(info: Any, chance: Random, likely: dict[str, Sequence[Any]]) -> Any:
    match info:
        case msgspec.inspect.IntType():
            return chance.choice(_INTS)
        case msgspec.inspect.FloatType():
            return chance.choice(_FLOATS)
        case msgspec.inspect.BoolType():
            return chance.random() < 0.5
        case msgspec.inspect.StrType():
            return chance.choice(_WORDS)
        case msgspec.inspect.BytesType():
            return chance.choice((b"", b"\0" * 7, b"\xff" * 3_000))
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.LiteralType(values=values):
            return chance.choice(values)
        case msgspec.inspect.UnionType(types=types):
            return _value(chance.choice(types), chance, likely)
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return [_value(item, chance, likely) for _ in range(chance.choice((0, 1, 2, 7)))]
        case msgspec.inspect.TupleType(item_types=items):
            return tuple(_value(item, chance, likely) for item in items)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            pairs = range(chance.choice((0, 1, 3)))
            return {_value(key, chance, likely): _value(value, chance, likely) for _ in pairs}
        case msgspec.inspect.StructType(cls=kind):
            return make(kind, chance, likely)
    raise TypeError(f"no edge values for {info}")
