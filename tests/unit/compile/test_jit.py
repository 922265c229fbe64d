"""Abilities and limits of a compiled kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from rlsched.compile.jit import array_kernel, compile_time, kernel, shared, specialise
from rlsched.compile.linking import EntryCompiler, EntryLibrary, InsideCompiler, InsideLibrary


@array_kernel
def doubled_sum(values: np.ndarray) -> float:
    copy = np.empty(values.shape[0])
    for k in range(values.shape[0]):
        copy[k] = 2.0 * values[k]
    return copy.sum()


@kernel
def through_another(values: np.ndarray) -> float:
    return doubled_sum(values[1:])


@kernel
def allocates(count: int) -> float:
    return np.zeros(count).sum()


def test_kernel_calls_a_function_that_allocates() -> None:
    assert through_another(np.arange(4.0)) == 12.0


def test_kernel_that_allocates_is_refused() -> None:
    with pytest.raises(TypingError):
        allocates(3)


@kernel
def halved(number: float) -> float:
    return 0.5 * number


@kernel
def quartered(number: float) -> float:
    return halved(halved(number))


def compiled_afresh(one: Any, compiler: type, **options: bool) -> Any:
    """The library of a kernel that is compiled now, regardless of an earlier run's cache."""
    options = {**one._options, **options, "cache": False}
    dispatcher = numba.njit(**options, pipeline_class=compiler)(one.py_func)
    dispatcher.compile((numba.float64,))
    (found,) = dispatcher.overloads.values()
    return found.library


def test_machine_code_is_made_only_for_calls_from_python() -> None:
    assert quartered(8.0) == 2.0
    entry = compiled_afresh(quartered, EntryCompiler)
    inside = compiled_afresh(halved, InsideCompiler, no_cpython_wrapper=True)
    assert (type(entry), type(inside)) == (EntryLibrary, InsideLibrary)
    assert any(True for _ in entry.get_defined_functions())
    assert not any(True for _ in inside.get_defined_functions())


def test_callers_declare_a_shared_kernel() -> None:
    one = shared(halved)

    @kernel
    def through_shared(number: float) -> float:
        return one(one(number))

    assert through_shared(8.0) == 2.0
    for compiler, options in ((EntryCompiler, {}), (InsideCompiler, {"no_cpython_wrapper": True})):
        library = compiled_afresh(through_shared, compiler, **options)
        (symbol,) = library.needs
        assert "halved" in symbol


def test_entry_points_keep_no_intermediate_code_in_the_cache() -> None:
    entry = compiled_afresh(quartered, EntryCompiler)
    _, kind, (machine_code, names) = entry.serialize_using_object_code()
    assert kind == "object"
    assert len(machine_code) > 0
    kept = {each.name: each for each in llvm.parse_bitcode(names).functions}
    assert kept.keys() == {each.name for each in entry.get_defined_functions()}
    for function in kept.values():
        (block,) = function.blocks
        assert [instruction.opcode for instruction in block.instructions] == ["ret"]


CALLER = """
import sys
from rlsched.compile.jit import array_kernel, compile_time, kernel, specialise
import numpy as np

@array_kernel
def outer(values):
    return values + total(values)

@kernel
def total(values):
    left = 0.0
    for value in values:
        left += value
    return left

@kernel
def mean_of(values):
    return total(outer(values)) / len(values)

which = {"mean": mean_of, "total": total}[sys.argv[1]]
print(which(np.arange(4.0)))
entry = which._entry.stats
inside = [each._inside.stats for each in (outer, total)]
print(sum(entry.cache_hits.values()), sum(entry.cache_misses.values()))
print(sum(sum(each.cache_misses.values()) for each in inside))
"""


def test_another_process_loads_from_the_cache(tmp_path: Path) -> None:
    script = tmp_path / "caller.py"
    script.write_text(CALLER)

    def run_script(which: str) -> list[str]:
        return subprocess.run(
            [sys.executable, str(script), which],
            env={
                **os.environ,
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n")[:3]

    assert run_script("mean") == ["7.5", "0 1", "2"], "compiled: the entry and its callee"
    assert run_script("mean") == ["7.5", "1 0", "0"], "only the entry is loaded"
    assert run_script("total") == ["6.0", "0 1", "0"], "another entry is linked from cached code"


# ---- constants of the compiler --------------------------------------------------------------------

DOUBLES = compile_time("DOUBLES")
DEEPER = compile_time("DEEPER")
step = compile_time("step")


@kernel
def deepest(numbers: Any, at: int) -> float:
    if DEEPER:
        return numbers.no_such_field[at]
    return numbers[at]


@kernel
def by_one(numbers: Any, at: int) -> float:
    return deepest(numbers, at) + 1.0


@kernel
def by_ten(numbers: Any, at: int) -> float:
    return numbers[at] + 10.0


@kernel
def summed(numbers: Any) -> float:
    total = 0.0
    for at in range(numbers.shape[0]):
        if DOUBLES and numbers[at] > 0.0:
            total += 2.0 * step(numbers, at)
        else:
            total += step(numbers, at)
    return total


def test_template_is_compiled_for_its_open_parameters() -> None:
    numbers = np.arange(3.0)
    once = specialise(summed, DOUBLES=False, step=by_one, DEEPER=False)
    assert once(numbers) == 6.0
    assert specialise(summed, DOUBLES=True, step=by_one, DEEPER=False)(numbers) == 11.0
    assert specialise(summed, DOUBLES=False, step=by_ten)(numbers) == 33.0
    assert specialise(summed, DOUBLES=False, step=by_one, DEEPER=False, unheard_of=7) is once


def test_open_parameters_are_named() -> None:
    with pytest.raises(TypeError, match="summed has open names without a value: DOUBLES, step"):
        specialise(summed)
    with pytest.raises(TypeError, match="has open names without a value: DEEPER"):
        specialise(summed, DOUBLES=False, step=by_one)
    with pytest.raises(TypeError, match="DOUBLES has no value"):
        bool(DOUBLES)


def test_kernel_without_open_parameters_is_itself() -> None:
    assert specialise(by_ten, DOUBLES=True) is by_ten


# ---- the cache ------------------------------------------------------------------------------------

PAIRS = """
from typing import NamedTuple
import numpy as np

class Pair(NamedTuple):
    {first}: np.ndarray
    {second}: np.ndarray
"""

VERSION = """
import numpy as np
import constants
from pairs import Pair
from rlsched.compile.jit import kernel

@kernel
def inner(pair):
    {doc}
    return pair.one[0] * constants.FACTOR

@kernel
def outer(pair):
    return inner(pair) + {added}

@kernel
def other(pair):
    return pair.one[0]

print(outer(Pair(np.array([2.0]), np.array([3.0]))), other(Pair(np.array([5.0]), np.array([6.0]))))
print(*(sum(one._entry.stats.cache_misses.values()) for one in (outer, other)))
"""


def run_version(
    folder: Path,
    *,
    factor: float = 10.0,
    fields: tuple[str, str] = ("one", "two"),
    doc: str = '"""In words."""',
    added: float = 1.0,
) -> tuple[list[float], list[int]]:
    """Output of a version of a program in a separate process: two results, and the compiled kernels."""
    (folder / "constants.py").write_text(f"FACTOR = {factor}")
    (folder / "pairs.py").write_text(PAIRS.format(first=fields[0], second=fields[1]))
    (folder / "version.py").write_text(VERSION.format(doc=doc, added=added))
    said = subprocess.run(
        [sys.executable, "-B", str(folder / "version.py")],
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [float(one) for one in said[0].split()], [int(one) for one in said[1].split()]


@pytest.mark.slow
def test_change_compiles_only_the_affected_kernels(tmp_path: Path) -> None:
    assert run_version(tmp_path) == ([21.0, 5.0], [1, 1])
    assert run_version(tmp_path) == ([21.0, 5.0], [0, 0])
    assert run_version(tmp_path, doc='"""Told in other words."""') == ([21.0, 5.0], [0, 0])
    assert run_version(tmp_path, added=2.0) == ([22.0, 5.0], [1, 0]), "its own code"
    assert run_version(tmp_path, doc="pair = Pair(pair.two, pair.one)") == ([31.0, 5.0], [1, 0]), "a callee's"
    assert run_version(tmp_path, factor=100.0) == ([201.0, 5.0], [1, 0]), "a constant of a callee"
    assert run_version(tmp_path, fields=("two", "one")) == ([31.0, 6.0], [1, 1]), "the fields of its argument"
    assert run_version(tmp_path) == ([21.0, 5.0], [0, 0]), "earlier versions are still there"


def test_another_folder_shares_the_cache(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    run_version(tmp_path / "a")
    (tmp_path / "a" / "rlsched").rename(tmp_path / "b" / "rlsched")
    assert run_version(tmp_path / "b") == ([21.0, 5.0], [0, 0])
