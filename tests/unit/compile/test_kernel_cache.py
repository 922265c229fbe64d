"""The cache of compiled kernels, used by several versions of the code and after damage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlsched.compile.kernel_cache import KEPT_UNUSED_DAYS
from rlsched.compile.shared_code import SUFFIX

MODULE = """
from typing import NamedTuple
import numpy as np
from rlsched.compile.jit import kernel

class {name}(NamedTuple):
    {field}: np.ndarray
    of: float

@kernel
def times(pair):
    return pair[0][0] * pair[1]

print(times({name}(np.full(1, 6.0), 7.0)))
"""


def run_version(place: Path, name: str, field: str = "values") -> str:
    """Run one version of a module with a kernel; all versions share a cache."""
    (place / "versioned.py").write_text(MODULE.format(name=name, field=field))
    cache = {"XDG_CACHE_HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "import versioned"],
        cwd=place,
        env=os.environ | cache,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def entries(place: Path) -> list[Path]:
    return sorted(place.glob("rlsched/kernels-*/entries/versioned.times-*.nbi"))


@pytest.mark.slow
def test_versions_with_other_types_share_a_cache(tmp_path: Path) -> None:
    for name, field in (
        ("Before", "values"),
        ("After", "values"),
        ("Before", "numbers"),
        ("After", "values"),
    ):
        assert run_version(tmp_path, name, field) == "42.0"
    assert len(entries(tmp_path)) == 3


@pytest.mark.slow
def test_unreadable_entry_is_made_again(tmp_path: Path) -> None:
    run_version(tmp_path, "Pair")
    for kind in ("inside", "entries"):
        for entry in tmp_path.glob(f"rlsched/kernels-*/{kind}/*.nbi"):
            entry.write_bytes(entry.read_bytes()[:40])
    assert run_version(tmp_path, "Pair") == "42.0"
    for entry in tmp_path.glob("rlsched/kernels-*/*/*.nbc"):
        entry.write_bytes(b"")
    assert run_version(tmp_path, "Pair") == "42.0"


SHARING = """
import numpy as np
from rlsched.compile.jit import array_kernel, kernel, shared

@shared
@array_kernel
def total(values):
    return np.cumsum(values)[-1]

@shared
@kernel
def mean(values):
    return total(values) / len(values)

@kernel
def {caller}(values):
    return mean(values) + total(values[1:])

print({caller}(np.arange(4.0)))
print(*(sum(one._inside.stats.cache_misses.values()) for one in (total, mean)))
"""


def run_sharing(place: Path, caller: str) -> list[str]:
    """Run a program with two shared kernels, of which one calls the other."""
    (place / "sharing.py").write_text(SHARING.format(caller=caller))
    done = subprocess.run(
        [sys.executable, "-B", "-c", "import sharing"],
        cwd=place,
        env=os.environ | {"XDG_CACHE_HOME": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:2]


def test_shared_kernels_are_compiled_once_and_again_if_their_files_are_lost(tmp_path: Path) -> None:
    assert run_sharing(tmp_path, "first") == ["7.5", "1 1"]
    assert run_sharing(tmp_path, "first") == ["7.5", "0 0"], "the caller's machine code is loaded"
    assert run_sharing(tmp_path, "second") == ["7.5", "0 0"], "another caller uses the same machine code"
    files = [*tmp_path.glob(f"rlsched/kernels-*/shared/*{SUFFIX}")]
    assert len(files) == 2
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:100])
    assert run_sharing(tmp_path, "first") == ["7.5", "1 1"]
    assert run_sharing(tmp_path, "second") == ["7.5", "0 0"]
    assert len([*tmp_path.glob(f"rlsched/kernels-*/shared/*{SUFFIX}")]) == 2


def test_unused_entries_are_removed(tmp_path: Path) -> None:
    run_version(tmp_path, "Before")
    (unused,) = entries(tmp_path)
    long_ago_s = time.time() - (KEPT_UNUSED_DAYS + 1) * 86400
    os.utime(unused, (long_ago_s, long_ago_s))
    run_version(tmp_path, "After")
    (left,) = entries(tmp_path)
    assert left != unused
    assert {path.name.partition(".1.nbc")[0] for path in left.parent.glob("versioned.*.nbc")} == {left.stem}
