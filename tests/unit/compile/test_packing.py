"""Tuples of arrays that kernels take by reference keep their contents."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, rtsys
from numpy.typing import NDArray

from rlsched.compile.jit import Kernel, array_kernel, kernel
from rlsched.compile.kernel_cache import Digests, types_digest
from rlsched.compile.packing import ReferenceModel
from rlsched.compile.reference import by_reference


@by_reference
class Inner(NamedTuple):
    flags: Any
    of_two: Any


@by_reference
class Outer(NamedTuple):
    inner: Inner
    numbers: Any
    log: Any
    scale: float
    holds: bool


class Plain(NamedTuple):
    outer: Outer
    more: float


def made(count: int = 4, *, holds: bool = True) -> Outer:
    inner = Inner(np.arange(count) % 2 == 0, np.arange(2.0 * count).reshape(count, 2))
    return Outer(inner, np.arange(float(count)), None, 0.5, holds)


def value_of(given: Any) -> Any:
    """Its representation in compiled code."""
    return cpu_target.target_context.data_model_manager[numba.typeof(given)]


def test_only_marked_classes_are_passed_by_reference() -> None:
    assert isinstance(value_of(made()), ReferenceModel)
    assert not isinstance(value_of(Plain(made(), 1.0)), ReferenceModel)


def test_passing_mode_of_a_tuple_is_part_of_the_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, function = (numba.typeof(made()),), part.py_func  # type: ignore[attr-defined]
    before = types_digest(kinds), Digests().digest_of(function)
    monkeypatch.setattr("rlsched.compile.kernel_cache.BY_REFERENCE", {Inner})
    after = types_digest(kinds), Digests().digest_of(function)
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True]


@kernel
def total(given: Outer) -> float:
    found = 0.0
    for at in range(given.numbers.shape[0]):
        if given.inner.flags[at] and given.holds:
            found += given.numbers[at] * given.scale + given.inner.of_two[at, 1]
    return found


@pytest.mark.parametrize("holds", [True, False])
def test_every_part_is_read(holds: bool) -> None:
    given = made(holds=holds)
    assert total(given) == total.py_func(given)  # type: ignore[attr-defined]


@kernel
def double(given: Outer) -> None:
    for at in range(given.numbers.shape[0]):
        given.numbers[at] *= 2.0


@kernel
def doubled_total(given: Outer) -> float:
    before = given.numbers[1]
    double(given)
    return given.numbers[1] - before


def test_writes_of_another_kernel_are_visible() -> None:
    given = made()
    assert doubled_total(given) == 1.0
    assert given.numbers.tolist() == [0.0, 2.0, 4.0, 6.0]


@kernel
def part(given: Outer, k: int) -> Outer:
    inner = Inner(given.inner.flags[k:], given.inner.of_two[k:])
    return Outer(inner, given.numbers[k:], None, given.scale, given.holds)


@kernel
def of_parts(given: Outer) -> float:
    found = 0.0
    for k in range(given.numbers.shape[0]):
        found += total(part(given, k))
    return found


@kernel
def of_plain(plain: Plain) -> float:
    return total(plain.outer) + plain.more


def test_kernel_creates_and_returns_tuples() -> None:
    given = made()
    parts = [part.py_func(given, k) for k in range(4)]  # type: ignore[attr-defined]
    assert of_parts(given) == sum(total(one) for one in parts)
    assert of_plain(Plain(given, 3.0)) == total(given) + 3.0


@array_kernel
def copied(given: Outer) -> Outer:
    inner = Inner(given.inner.flags.copy(), given.inner.of_two)
    return Outer(inner, given.numbers.copy(), None, given.scale, given.holds)


@array_kernel
def copied_or_less(given: Outer, k: int) -> tuple[int, Outer]:
    copy = copied(given)
    if k < 0:
        return -1, copy
    return k, copy


@array_kernel
def of_copies(given: Outer, k: int) -> float:
    number, copy = copied_or_less(given, k)
    double(copy)
    return number + total(copy)


def test_python_gets_the_tuple_that_a_kernel_returns() -> None:
    number, copy = copied_or_less(made(), 3)
    assert (number, type(copy), type(copy.inner)) == (3, Outer, Inner)
    assert (copy.log, copy.scale, copy.holds) == (None, 0.5, True)
    assert copy.numbers.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert copy.inner.flags.tolist() == [True, False, True, False]


@pytest.mark.parametrize("k", [-1, 0, 7])
def test_only_owned_arrays_are_freed(k: int) -> None:
    given = made()
    of_copies(given, k)
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        found = of_copies(given, k)
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    twice = given._replace(numbers=2.0 * given.numbers)
    assert found == k + total(twice)
    assert given.numbers.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert after.alloc - before.alloc == after.free - before.free > 0


class Terms(NamedTuple):
    factor: float


@kernel
def plus(inner: Inner, more: float) -> float:
    return inner.of_two[0, 1] + inner.of_two.shape[0] + more


def test_kernel_recognises_only_the_same_tuple() -> None:
    """Called again with one tuple it skips numba's type check: it must never accept a wrong one."""
    narrow = Inner(np.ones(3, bool), np.arange(6.0).reshape(3, 2))
    wide = Inner(np.ones(3, bool), np.arange(24.0).reshape(3, 8)[:, ::4])  # not contiguous
    for _ in range(3):
        assert [plus(narrow, 1), plus(narrow, 0.5), plus(narrow, True)] == [5.0, 4.5, 5.0]
    assert plus._known, "the kernel recognises it"  # type: ignore[attr-defined]
    for _ in range(3):
        assert [plus(wide, 1), plus(narrow, 1), plus(wide, 1), plus(wide, 1)] == [8.0, 5.0, 8.0, 8.0]
    with pytest.raises(TypingError):
        plus(narrow, "text")  # type: ignore[arg-type]


@kernel
def weighed(inner: Inner, weights: NDArray[np.float64], terms: Terms) -> float:
    return inner.of_two[0, 1] * weights[0] * terms.factor + weights.shape[0]


def test_kernel_recognises_arrays_and_options_again_and_no_others() -> None:
    inner = Inner(np.ones(3, bool), np.arange(6.0).reshape(3, 2))
    thin = np.arange(1.0, 9.0)[::4]
    given = [np.ones(2), np.full(3, 2.0), thin, np.ones(2, np.float32), np.ones(2, np.int64)]
    for _ in range(3):
        assert [weighed(inner, one, Terms(2.0)) for one in given] == [4.0, 7.0, 4.0, 4.0, 4.0]
        assert [weighed(inner, one, Terms(3)) for one in given] == [5.0, 9.0, 5.0, 5.0, 5.0]
    known = weighed._known  # type: ignore[attr-defined]
    assert len(known) == len(set(known.values())) == 8, "four kinds of arrays, two of terms"


@kernel
def ones(given: Inner) -> int:
    return given.flags.sum()


def test_alternating_tuples_are_typed_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, look = list[Any](), Kernel._find_and_call
    monkeypatch.setattr(Kernel, "_find_and_call", lambda one, args: (looked.append(one), look(one, args))[1])
    given = made()
    for _ in range(4):
        assert total(given) == 7.0
        assert ones(given.inner) == 2
    assert len(looked) == 4, "each is new once, and remembered by its second call"


def test_bound_call_accepts_every_tuple_of_its_type_without_typing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = made(), made(8)
    wanted = [total(one), total(other)]
    call = total.bound(one)  # type: ignore[attr-defined]
    monkeypatch.setattr(Kernel, "_find_and_call", None)
    for _ in range(3):  # in turn, as with the two sets of arrays of an environment
        assert [call(one), call(other)] == wanted
