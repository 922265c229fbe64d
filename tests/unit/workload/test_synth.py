"""The synthetic generator: its promises for every profile, size and seed."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rlsched.cli.traces.trace import synth
from rlsched.errors import InputError
from rlsched.models.catalogue.table import FAMILY_OF
from rlsched.workload.describe import spearman
from rlsched.workload.load import offered_load, runnable_mask
from rlsched.workload.predictability import parse_predictability
from rlsched.workload.profiles import DURATION_PROBABILITIES, PROFILES
from rlsched.workload.synth import synthesize

LIKES = sorted(PROFILES)


@pytest.mark.parametrize("like", LIKES)
@pytest.mark.parametrize(
    ("jobs", "load", "gpus", "per_node"),
    [(2000, 0.9, 64, 8), (300, 1.1, 16, 4), (5000, 0.5, 512, 8), (50, 0.9, 1, 1), (2, 0.9, 8, 8)],
)
def test_every_promise(like: str, jobs: int, load: float, gpus: int, per_node: int) -> None:
    trace, spec = synthesize(like, jobs, load, gpus, per_node, seed=3)
    assert len(trace) == jobs
    assert spec.num_gpus == gpus
    assert spec.nodes[0].gpus == per_node
    assert offered_load(trace, spec) == pytest.approx(load, rel=0.001 + 1.0 / trace.submit_s[-1])
    assert runnable_mask(trace, spec).mask.all()
    assert trace.num_gpus.max() <= max(1, gpus // 2)
    assert trace.submit_s[0] == 0
    assert (np.diff(trace.submit_s) >= 0).all()
    assert (trace.duration_s >= 1).all()
    for seconds in (trace.submit_s, trace.duration_s):
        assert (seconds == np.rint(seconds)).all()
    assert np.isnan(trace.predicted_s).all()
    assert np.isnan(trace.predicted_spread).all()


@pytest.mark.parametrize("like", LIKES)
def test_same_seed_gives_the_same_bytes(tmp_path: Path, like: str) -> None:
    for name, seed in (("one", 7), ("two", 7), ("other", 8)):
        trace, _ = synthesize(like, 400, 0.9, 32, seed=seed, predictability="informative")
        trace.write(tmp_path / f"{name}.csv.gz")
    one, two, other = ((tmp_path / f"{name}.csv.gz").read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other


def test_predictability_does_not_change_the_jobs() -> None:
    plain, _ = synthesize("helios", 500, 0.9, 64, seed=1)
    for level in ("causal", "informative", 1.0):
        other, _ = synthesize("helios", 500, 0.9, 64, seed=1, predictability=level)
        np.testing.assert_array_equal(plain.submit_s, other.submit_s)
        np.testing.assert_array_equal(plain.duration_s, other.duration_s)
        np.testing.assert_array_equal(plain.job_name, other.job_name)
        assert not np.isnan(other.predicted_s).any()


@pytest.mark.parametrize("like", LIKES)
def test_quality_of_predicted_durations(like: str) -> None:
    rank = {}
    for level in ("causal", "informative", 0.3, 0.8):
        trace, _ = synthesize(like, 20_000, 0.9, 256, seed=2, predictability=level)
        rank[level] = spearman(trace.duration_s, trace.predicted_s)
        z = np.log(trace.duration_s / trace.predicted_s) / np.maximum(trace.predicted_spread, 0.05)
        assert np.sqrt(np.mean(z**2)) == pytest.approx(1.0, abs=0.15), f"{level}: spreads are not calibrated"
    assert 0.1 < (rank["causal"] or 0) < 0.6
    assert (rank["informative"] or 0) > 0.75
    assert (rank[0.3] or 0) > (rank[0.8] or 0) > (rank["causal"] or 0)


def test_spread_of_zero_predicts_exactly() -> None:
    trace, _ = synthesize("philly", 500, 0.9, 64, predictability=0.0)
    np.testing.assert_array_equal(trace.predicted_s, trace.duration_s)
    assert (trace.predicted_spread == 0).all()


def test_jobs_of_a_burst_share_their_error() -> None:
    trace, _ = synthesize("philly", 20_000, 0.9, 256, seed=5, predictability=0.8)
    error = np.log(trace.duration_s / trace.predicted_s)
    together = (trace.job_name[1:] == trace.job_name[:-1]) & (np.diff(trace.submit_s) < 30)
    correlation = np.corrcoef(error[1:][together], error[:-1][together])[0, 1]
    assert correlation > 0.3
    shuffled = np.random.default_rng(0).permutation(error)
    assert abs(np.corrcoef(shuffled[1:], shuffled[:-1])[0, 1]) < 0.05


def test_names_are_repeated_and_name_their_gpus() -> None:
    trace, _ = synthesize("helios", 5000, 0.9, 64, seed=0)
    names, count = np.unique(trace.job_name, return_counts=True)
    assert count[count >= 5].sum() > 0.65 * len(trace)
    assert all(str(name).startswith(str(user)) for name, user in zip(trace.job_name, trace.user, strict=True))
    for name in names[:20]:
        assert len(np.unique(trace.num_gpus[trace.job_name == name])) == 1


def test_verb_offers_every_profile() -> None:
    (like,) = (one for one in synth.params if one.name == "like")
    assert list(like.type.choices) == list(PROFILES)  # type: ignore[attr-defined]


def test_habits_of_users_have_the_stated_strength() -> None:
    for habit in (0.0, 0.7, 1.0):
        trace, _ = synthesize("helios", 20_000, 0.9, 512, seed=3, habit=habit)
        _, name = np.unique(trace.job_name, return_inverse=True)
        log = np.log(trace.duration_s)
        _, size = np.unique(trace.num_gpus, return_inverse=True)
        of_size, of_name = ((np.bincount(key, log) / np.bincount(key))[key] for key in (size, name))
        told = np.var(of_name - of_size) / np.var(log - of_size)
        by_chance = 0.25 * (1.0 - habit)  # bursts have much in common, and many names have few of them
        assert habit - 0.1 <= told <= habit + by_chance + 1e-3, habit


def test_llm_cluster_is_as_published() -> None:
    trace, _ = synthesize("acme", 100_000, 0.9, 2432, seed=0)
    gpus, duration_s = trace.num_gpus, trace.duration_s
    work = gpus * duration_s / np.sum(gpus * duration_s)
    assert gpus.mean() == pytest.approx(26.77, rel=0.1)
    assert np.median(gpus) == 1
    assert gpus.max() == 1024
    assert np.median(duration_s) == pytest.approx(124, rel=0.15)
    assert duration_s.mean() == pytest.approx(1260, rel=0.2)
    assert (gpus >= 128).mean() == pytest.approx(0.032, abs=0.005)
    assert work[gpus >= 128].sum() == pytest.approx(0.94, abs=0.05)
    assert work[gpus >= 256].sum() == pytest.approx(0.96, abs=0.03)
    assert work[gpus == 1].sum() < 0.02
    assert (gpus > 8).mean() < 0.07
    assert (duration_s > 86_400).mean() < 0.05


def test_workloads_are_named_where_a_profile_has_them() -> None:
    plain, _ = synthesize("helios", 100, 0.9, 64)
    assert "workload" not in plain.extra
    trace, _ = synthesize("acme", 2000, 0.9, 512)
    names, known = np.unique(trace.extra["workload"]), set(FAMILY_OF)
    assert known.issuperset(names.tolist())
    gangs = trace.extra["workload"][trace.num_gpus >= 128]
    assert set(gangs.tolist()) == set(PROFILES["acme"].workloads[128])


def test_days_and_nights() -> None:
    trace, _ = synthesize("helios", 50_000, 0.9, 512, seed=0)
    by_hour = np.bincount((trace.submit_s // 3600 % 24).astype(int), minlength=24)
    assert by_hour[10:18].mean() > 2.5 * by_hour[0:4].mean()


def test_a_hundred_thousand_jobs_take_less_than_a_minute() -> None:
    began = time.process_time()
    synthesize("helios", 100_000, 0.9, 1024, predictability="informative")
    assert time.process_time() - began < 60.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"like": "google"}, "unknown kind of workload 'google'; known: helios, philly, itp, acme"),
        ({"jobs": 1}, "at least 2 jobs, got 1"),
        ({"load": 0.0}, "a load above 0, got 0"),
        ({"load": float("nan")}, "a load above 0, got nan"),
        ({"gpus": 12}, "a multiple of 8 GPUs"),
        ({"gpus": 0}, "a multiple of 8 GPUs"),
        ({"gpus": 65, "gpus_per_node": 65}, "gpus must be 0 to 64"),
        ({"seed": -1}, "a seed of 0 or more"),
        ({"predictability": "perfect"}, "none, causal, informative or a number"),
        ({"habit": 1.5}, "expected a habit of 0 to 1, got 1.5"),
        ({"predictability": -0.5}, "none, causal, informative or a number"),
    ],
)
def test_arguments_out_of_range(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"like": "helios", "jobs": 10, "load": 0.9, "gpus": 16} | change
    with pytest.raises(InputError, match=message):
        synthesize(**arguments)  # type: ignore[arg-type]


def test_parse_predictability() -> None:
    assert parse_predictability("causal") == "causal"
    assert parse_predictability("0.5") == 0.5
    for text in ("nan", "inf", "-1", "", "much"):
        with pytest.raises(InputError):
            parse_predictability(text)


@pytest.mark.parametrize("like", LIKES)
def test_profiles_are_well_formed(like: str) -> None:
    profile = PROFILES[like]
    assert list(profile.durations) == list(profile.bursts)
    assert min(profile.gpus) == min(profile.durations) == 1
    assert len(profile.hours) == 24
    assert len(profile.weekdays) == 7
    assert sum(profile.gpus.values()) == pytest.approx(1, abs=0.01)
    assert 0 <= profile.name_correlation <= profile.burst_correlation < 1
    for knots in profile.durations.values():
        assert len(knots) == len(DURATION_PROBABILITIES)
        assert list(knots) == sorted(knots)
    for shares in (*profile.bursts.values(), *profile.workloads.values()):
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert list(profile.workloads) in ([], list(profile.durations))
