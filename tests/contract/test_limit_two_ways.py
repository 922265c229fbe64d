"""A power limit in the simulator: kept at every instant, by compiled runs and by single decisions alike."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.energy.series import HOUR_S, Series
from rlsched.energy.synth import synthesize
from rlsched.power_down.plan import PowerDownPlan
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.contract.test_price_two_ways import BEGINS, PRICED, strategy, workload
from tests.quick import quick

POLICIES = {
    "tuned": Policy("tuned"),
    "priced": PRICED,
    "dials": Policy("tuned", dials=strategy().text),
    "backfill": Policy("fifo-backfill"),
    "heaps": Policy("qssf-backfill"),
    "index": Policy("gittins"),
    "quota": Policy("tiresias"),
    "packing": Policy("pack"),
}
OTHERS = ("heaps", "index", "packing")
"""Policies that only `make soak` tests."""
SECOND_0 = "2026-01-01T05:00Z"


def run(
    policy: Policy,
    energy: EnergySignals | None,
    *,
    stepped: bool = False,
    models: Models | None = None,
    load: float = 0.7,
    given: tuple[Trace, ClusterSpec] | None = None,
    oracle: bool = False,
) -> JobTable:
    trace, spec = given or workload(load)
    engine = Engine(
        trace,
        msgspec.structs.replace(spec, energy=energy),
        order=policy.rule.order,
        predictions=predict_trace(trace, spec, oracle=oracle),
        models=models or Models(energy_weight=0.3),
    )
    return engine.run(RuleScheduler(policy)) if stepped else engine.run_rule(policy.rule)


def limits(folder: Path, cut: float, hours: tuple[int, int], most_kw: float) -> EnergySignals:
    """A limit that falls every day for some hours."""
    hour = np.arange(24 * 60) % 24
    values = np.where((hour >= hours[0]) & (hour < hours[1]), (1.0 - cut) * most_kw, most_kw)
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    Series("limit", begins, HOUR_S, values).write(folder / "limit.csv")
    return EnergySignals(power_limit=str(folder / "limit.csv"), begins=SECOND_0)


@pytest.mark.parametrize("name", quick(POLICIES, lambda name: name in ("tuned", "backfill"), soak=OTHERS))
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_announced_limit_is_followed_by_compiled_and_by_single_decisions(
    name: str, kind: Literal["hard", "soft"], tmp_path: Path
) -> None:
    policy = POLICIES[name]
    untold = limits(tmp_path, 0.6, (8, 12), 1.2 * peak_kw(policy))
    energy = msgspec.structs.replace(untold, power_limit_known_ahead_h=12.0, power_limit_kind=kind)
    if name in ("priced", "dials"):
        synthesize("solar", BEGINS, 60, seed=1).write(tmp_path / "price.csv")
        energy = msgspec.structs.replace(energy, price=str(tmp_path / "price.csv"), known_ahead_h=12.0)
    compiled, again = (run(policy, energy, stepped=stepped, oracle=True) for stepped in (False, True))
    assert np.array_equal(compiled.start_s, again.start_s)
    assert np.array_equal(compiled.end_s, again.end_s)
    assert compiled.gpus == again.gpus
    assert not np.isnan(compiled.end_s).any()
    if kind == "hard" and name == "backfill":  # it preempts no job
        told, without = compiled, run(policy, untold, oracle=True)
        assert exceeded_s(told) == 0.0 < exceeded_s(without)


def exceeded_s(table: JobTable) -> float:
    assert table.energy is not None
    assert table.energy.limit is not None
    return table.energy.limit.exceeded_s


def peak_kw(policy: Policy) -> float:
    table = run(policy, None)
    assert table.energy is not None
    return table.energy.peak_w / 1000.0


@pytest.mark.parametrize("name", quick(POLICIES, lambda name: name in ("tuned", "backfill"), soak=OTHERS))
def test_limit_that_falls_is_kept_by_compiled_and_by_single_decisions(name: str, tmp_path: Path) -> None:
    policy = POLICIES[name]
    energy = limits(tmp_path, 0.3, (8, 12), 0.95 * peak_kw(policy))
    if name in ("priced", "dials"):
        synthesize("solar", BEGINS, 60, seed=1).write(tmp_path / "price.csv")
        energy = msgspec.structs.replace(energy, price=str(tmp_path / "price.csv"), known_ahead_h=12.0)
    compiled = run(policy, energy)
    again = run(policy, energy, stepped=True)
    assert np.array_equal(compiled.start_s, again.start_s)
    assert np.array_equal(compiled.end_s, again.end_s)
    assert compiled.gpus == again.gpus
    assert compiled.energy is not None
    assert compiled.energy.limit is not None
    assert compiled.energy.limit.capped_s > HOUR_S
    assert compiled.energy.limit.exceeded_s == 0.0
    assert not np.isnan(compiled.end_s).any()


@pytest.mark.parametrize("name", quick(POLICIES, lambda name: name == "tuned", soak=OTHERS))
def test_limit_that_is_never_reached_changes_nothing(name: str) -> None:
    policy = POLICIES[name]
    free, limited = run(policy, None), run(policy, EnergySignals(power_limit_kw=1e6))
    assert np.array_equal(free.start_s, limited.start_s)
    assert np.array_equal(free.end_s, limited.end_s)
    assert free.energy is not None
    assert limited.energy is not None
    assert free.energy.cluster_j == limited.energy.cluster_j
    assert limited.energy.limit == (0.0, 0.0, 0.0)


def test_urgent_jobs_keep_their_speed_while_flexible_jobs_slow_down(tmp_path: Path) -> None:
    """A quarter less power for three hours a day: jobs without slack end at most 2 % later."""
    policy = Policy("tuned")
    free = run(policy, None)
    table = run(policy, limits(tmp_path, 0.25, (8, 11), peak_kw(policy)))
    assert table.energy is not None
    assert table.energy.limit is not None
    assert table.energy.limit.exceeded_s == 0.0
    urgent = table.trace.extra["slack_s"] == 0.0
    jct_s = (table.end_s - table.trace.submit_s) / (free.end_s - free.trace.submit_s)
    assert np.exp(np.log(jct_s[urgent]).mean()) <= 1.02
    assert np.exp(np.log(jct_s[~urgent]).mean()) > np.exp(np.log(jct_s[urgent]).mean())


def test_limit_below_the_power_of_idle_nodes_starts_no_job_and_ends() -> None:
    table = run(Policy("tuned"), EnergySignals(power_limit_kw=0.001))
    assert np.isnan(table.start_s).all()
    assert table.energy is not None
    assert table.energy.limit is not None
    assert table.energy.limit.exceeded_s > 0.0


@pytest.mark.slow
def test_limit_is_kept_with_nodes_that_sleep(tmp_path: Path) -> None:
    policy, models = Policy("tuned"), Models(energy_weight=0.3, power_down=PowerDownPlan())
    energy = limits(tmp_path, 0.3, (8, 12), 0.95 * peak_kw(policy))
    compiled, stepped = (run(policy, energy, models=models, load=0.4, stepped=one) for one in (False, True))
    assert np.array_equal(compiled.end_s, stepped.end_s)
    assert compiled.slept is not None
    assert compiled.slept.nodes_booted > 0
    assert compiled.energy is not None
    assert compiled.energy.limit is not None
    assert compiled.energy.limit.exceeded_s == 0.0


def test_limit_is_kept_under_a_policy_that_is_no_rule(tmp_path: Path) -> None:
    trace, spec = workload()
    energy = limits(tmp_path, 0.3, (8, 12), 0.95 * peak_kw(Policy("fifo-backfill")))
    scheduler = load_scheduler("random")
    engine = Engine(
        trace,
        msgspec.structs.replace(spec, energy=energy),
        order=scheduler.order,
        predictions=predict_trace(trace, spec),
        models=Models(),
    )
    table = engine.run(scheduler)
    assert table.energy is not None
    assert table.energy.limit is not None
    assert table.energy.limit.capped_s > HOUR_S
    assert table.energy.limit.exceeded_s == 0.0
    assert not np.isnan(table.end_s).any()


def test_run_that_is_read_at_given_times_decides_alike(tmp_path: Path) -> None:
    policy = Policy("tuned")
    energy = limits(tmp_path, 0.3, (8, 12), 0.95 * peak_kw(policy))
    whole, (trace, spec) = run(policy, energy), workload()
    engine = Engine(
        trace,
        msgspec.structs.replace(spec, energy=energy),
        order=policy.rule.order,
        predictions=predict_trace(trace, spec),
        models=Models(energy_weight=0.3),
    )
    times_s = np.arange(trace.submit_s[0] + 1.0, trace.submit_s[-1], HOUR_S / 3).tolist()
    assert [(time_s, engine.now_s) for time_s in engine.looks_at(policy.rule, [*times_s, 1e9])] == [
        (time_s, time_s) for time_s in times_s
    ]
    assert np.array_equal(engine.arrays.progress.outcome.start_s, whole.start_s)
    assert np.array_equal(engine.arrays.progress.outcome.end_s, whole.end_s)
