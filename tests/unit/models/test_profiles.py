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
    MAX_GPU_COUNTS,
    KeptProfile,
    Profiles,
    WorkloadProfile,
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


def test_factors_of_sharing_count_co_tenants_and_begin_less_certain_than_figures_of_attempts() -> None:
    known = Profiles()
    for factor in (0.5, 2.0):
        known.observe(SIGNATURE, "V100", {"sensitivity": factor, "util_frac": factor})
    found = known.profiles_of(SIGNATURE)["V100"].known_figures()
    assert found["sensitivity"].value == pytest.approx(1.0)
    assert (found["sensitivity"].source, found["sensitivity"].count) == ("2 observed co-tenants", 2)
    assert found["sensitivity"].spread > found["util_frac"].spread
    assert known.figure(SIGNATURE, "V100", "sensitivity") == found["sensitivity"]


def runs(known: Profiles, num_gpus: int, *run_s: float) -> None:
    """Completed jobs with these run times."""
    for one in run_s:
        known.observe(SIGNATURE, "V100", {"run_s": one}, num_gpus=num_gpus)


def test_scaling_is_relative_to_the_most_frequent_number_of_gpus() -> None:
    known = Profiles()
    runs(known, 4, 30.0, 30.0)
    runs(known, 2, 50.0, 50.0, 50.0)
    runs(known, 1, 100.0, 100.0)
    found = known.profiles_of(SIGNATURE)["V100"]
    assert {gpus: round(one.value, 6) for gpus, one in found.scaling.items()} == {
        2: 1.0,
        1: 0.5,
        4: round(5.0 / 3.0, 6),
    }
    assert next(iter(found.scaling)) == 2
    assert found.scaling[4].source == "run times of 2 and 3 completed jobs"
    assert found.run_s is not None
    assert (found.run_s.count, found.run_s.value) == (2, pytest.approx(100.0))


def test_numbers_of_gpus_with_one_or_with_scattered_run_times_have_no_scaling() -> None:
    known = Profiles()
    runs(known, 2, 50.0)
    runs(known, 4, 30.0)
    assert known.profiles_of(SIGNATURE)["V100"].scaling == {}
    runs(known, 2, 50.0, 50.0)
    runs(known, 4, 300.0, 3.0)
    assert known.profiles_of(SIGNATURE)["V100"].scaling == {}
    runs(known, 8, 20.0, 20.0)
    assert list(known.profiles_of(SIGNATURE)["V100"].scaling) == [2, 8]


def test_scaling_is_bounded_and_the_count_least_recently_seen_is_forgotten() -> None:
    known = Profiles()
    for num_gpus in (*range(2, 2 + MAX_GPU_COUNTS), 2, 100):
        runs(known, num_gpus, 50.0)
    (kept,) = known.kept_profiles()
    assert len(kept.run_s_of) == MAX_GPU_COUNTS
    assert list(kept.run_s_of)[-2:] == [2, 100]
    assert 3 not in kept.run_s_of


def test_saved_scaling_is_exact_and_continues_alike() -> None:
    known = Profiles()
    for num_gpus in (1, 2, 4, 2):
        runs(known, num_gpus, 100.0 / num_gpus, 101.0 / num_gpus)
    packed = msgspec.msgpack.encode(known.kept_profiles())
    again = Profiles.from_kept(msgspec.msgpack.decode(packed, type=list[KeptProfile]))
    for both in (known, again):
        runs(both, 8, 13.0)
    assert msgspec.msgpack.encode(again.kept_profiles()) == msgspec.msgpack.encode(known.kept_profiles())
    assert again.profiles_of(SIGNATURE) == known.profiles_of(SIGNATURE)
    profile = known.profiles_of(SIGNATURE)["V100"]
    assert msgspec.json.decode(msgspec.json.encode(profile), type=WorkloadProfile) == profile


def test_bases_of_earlier_versions_have_no_scaling() -> None:
    packed = msgspec.msgpack.encode([["ann", "c", "V100", {"run_s": [1, 1.0, 3.0, 0.0]}]])
    known = Profiles.from_kept(msgspec.msgpack.decode(packed, type=list[KeptProfile]))
    known.observe(("ann", "c"), "V100", {"run_s": 20.0}, num_gpus=2)
    assert known.profiles_of(("ann", "c"))["V100"].scaling == {}
    (kept,) = known.kept_profiles()
    assert list(kept.run_s_of) == [2]
