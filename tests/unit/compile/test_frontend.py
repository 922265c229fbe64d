"""Shortcuts of numba's front end give the same results as numba's own code."""

from __future__ import annotations

from _abc import _get_dump

import pytest
from numba.core import event, types
from numba.core.compiler import Flags

import rlsched.compile.frontend  # noqa: F401 - what is tested


def test_flags_are_equal_if_their_values_are() -> None:
    one, other = Flags(), Flags()
    assert one == other
    assert hash(one) == hash(other)
    other.nrt = False  # the same value as the default
    assert one == other
    assert hash(one) == hash(other)
    other.nrt = True
    assert one != other
    assert one != "flags"


def test_flags_keep_their_separate_values() -> None:
    flags = Flags()
    flags.error_model = "numpy"
    assert flags.values() == {name: getattr(flags, name) for name in flags.options}


def test_types_know_their_classes() -> None:
    assert isinstance(types.int64, types.Integer)
    assert isinstance(types.float64, types.Number)
    assert not isinstance(types.float64, types.Integer)
    assert not isinstance(3, types.Type)
    assert issubclass(types.Integer, types.Type)
    assert not issubclass(types.Integer, types.Float)


def test_no_class_is_registered_as_another_class_s_type() -> None:
    """`isinstance` of types checks only base classes, and needs no more."""
    left = [types.Type]
    while left:
        kind = left.pop()
        registered, *_ = _get_dump(kind)
        assert not registered, kind
        left += type.__subclasses__(kind)


def test_timer_does_nothing() -> None:
    with event.install_timer("numba:compile", pytest.fail):
        pass
