"""Profiles of jobs: signatures, learning and its order, and defaults from the catalogue."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import msgspec
import pytest

from rlsched.broker.base import profiles
from rlsched.broker.base.profiles import (
    ATTEMPT_SPREAD,
    LATEST,
    KeptProfile,
    Profiles,
    signature_of,
)

SIGNATURE = ("ann", "python train.py")


def test_signature_has_no_numbers_and_belongs_to_its_user() -> None:
    one = signature_of("ann", ["python", "train.py", "--seed", "12", "--out", "run 7"])
    assert one == signature_of("ann", ["python", "train.py", "--seed", "9", "--out", "run 123"])
    assert one != signature_of("bob", ["python", "train.py", "--seed", "12", "--out", "run 7"])
    assert one != signature_of("ann", ["python", "train.py", "--seed", "12"])


def test_learned_values_approach_the_truth_with_their_spread() -> None:
    draw, known = random.Random(1), Profiles()
    for _ in range(10):
        seen = {"util_frac": 0.8 * math.exp(draw.gauss(0, 0.03)), "memory_mib": 20_000.0, "cores_each": 3.5}
        known.observe(SIGNATURE, "A100", seen)
    found = known.profiles_of(SIGNATURE)["A100"]
    assert found.util_frac is not None
    assert found.memory_mib is not None
    assert found.cores_each is not None
    assert found.util_frac.value == pytest.approx(0.8, rel=0.05)
    assert found.memory_mib.value == pytest.approx(20_000.0)
    assert (found.util_frac.count, found.util_frac.status, found.util_frac.source) == (
        10,
        "learnt",
        "10 earlier attempts",
    )
    assert found.memory_mib.spread == pytest.approx(
        ATTEMPT_SPREAD / math.sqrt(10) * math.sqrt(1.0 + 1.0 / 10)
    )
    assert found.util_frac.spread > found.memory_mib.spread
    assert found.dynamic_w is None
    assert known.profiles_of(("bob", "python train.py")) == {}


def test_programs_change_and_old_attempts_fade() -> None:
    known = Profiles()
    for _ in range(200):
        known.observe(SIGNATURE, "A100", {"memory_mib": 10_000.0})
    for _ in range(int(3 * LATEST)):
        known.observe(SIGNATURE, "A100", {"memory_mib": 20_000.0})
    found = known.profiles_of(SIGNATURE)["A100"].memory_mib
    assert found is not None
    assert found.value == pytest.approx(20_000.0, rel=0.05)
    assert found.count == 260


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_invalid_values_are_ignored_and_zero_is_a_value(nonsense: float) -> None:
    known = Profiles()
    known.observe(SIGNATURE, "A100", {"util_frac": nonsense, "dynamic_w": 0.0, "no_such_field": 1.0})
    found = known.profiles_of(SIGNATURE)["A100"]
    assert set(found.known_figures()) == {"dynamic_w"}
    assert found.dynamic_w is not None
    assert found.dynamic_w.value == pytest.approx(0.0, abs=1e-5)


def test_saved_profiles_are_exact_and_continue_alike() -> None:
    draw, known = random.Random(2), Profiles()
    for number in range(50):
        signature = (f"u{number % 3}", "c")
        known.observe(signature, "A100" if number % 2 else "V100", {"util_frac": draw.random()})
    packed = msgspec.msgpack.encode(known.kept_profiles())
    again = Profiles.from_kept(msgspec.msgpack.decode(packed, type=list[KeptProfile]))
    for both in (known, again):
        both.observe(("u1", "c"), "A100", {"util_frac": 0.5, "host_mib": 7.0})
    assert msgspec.msgpack.encode(again.kept_profiles()) == msgspec.msgpack.encode(known.kept_profiles())
    assert again.profiles_of(("u1", "c")) == known.profiles_of(("u1", "c"))


def test_least_recently_seen_signature_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_SIGNATURES", 3)
    known = Profiles()
    for name in ("a", "b", "c", "a", "d"):
        known.observe(("u", name), "A100", {"util_frac": 0.5})
    assert [name for name in "abcd" if known.profiles_of(("u", name))] == ["a", "c", "d"]


def test_nodes_and_clients_read_profiles_without_numba() -> None:
    code = "import sys, rlsched.broker.base.profiles; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
