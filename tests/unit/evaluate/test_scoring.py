"""Costs of policies by an objective: terms by hand, intervals, and missing data."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.energy.synth import synthesize as synthesize_prices
from rlsched.errors import InputError
from rlsched.objective import Objective
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.simulate import Runs, simulate
from rlsched_envs.sim.engine import run_time_s

MIXED = Objective.from_toml(
    """
[objective]
time = 1.0
money = 1.0
peak = 1.0
late = 1.0
preemptions = 1.0

[objective.bounds]
urgent = 1.0

[[objective.classes]]
max_gpus = 1
weight = 3.0
"""
)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, ClusterSpec]:
    """Jobs of about two weeks, half of them with six hours of slack, on a cluster with prices."""
    trace, spec = synthesize("helios", jobs=600, load=0.6, gpus=32, seed=4)
    slack_s = np.where(np.arange(600) % 2, 6 * 3600.0, 0.0)
    preemptible = np.ones(600)
    file = tmp_path_factory.mktemp("prices") / "p.csv"
    days = int(trace.submit_s[-1] / 86_400.0) + 10
    synthesize_prices("solar", datetime(2026, 1, 1, tzinfo=UTC), days, seed=1).write(file)
    energy = EnergySignals(price=str(file), begins="2026-01-01T00:00Z", known_ahead_h=12.0)
    extra = {**trace.extra, "slack_s": slack_s, "preemptible": preemptible}
    return replace(trace, extra=extra), msgspec.structs.replace(spec, energy=energy)


@pytest.fixture(scope="module")
def runs(workload: tuple[Trace, ClusterSpec]) -> Runs:
    priced = Policy("priced").changed(["price.longer_than=0s"])  # all jobs are predicted to be short
    return simulate(*workload, {"tuned": "tuned", "priced": priced}, models="default", objective=MIXED)


def test_terms_are_those_of_the_replays(runs: Runs) -> None:
    tables = [runs[name].jobs.table for name in ("priced", "tuned")]
    trace = tables[0].trace
    run_s, gpus = run_time_s(trace), trace.num_gpus
    slack_s = np.asarray(trace.extra["slack_s"])
    found = runs.compare().scores["priced"]

    def sums(values: list[np.ndarray]) -> float:
        return float(values[0].sum() / values[1].sum())

    delay_s = [one.end_s - trace.submit_s - run_s for one in tables]
    beyond_s = [np.where(slack_s > 0.0, np.maximum(one - slack_s, 0.0), one) for one in delay_s]
    weight = np.where(gpus <= 1, 3.0, 1.0)
    expected = {
        "time": sums([weight * (one + run_s) for one in beyond_s]),
        "urgent": sums([(one + run_s)[slack_s == 0.0] for one in delay_s]),
        "late": sums([((slack_s > 0.0) & (one > slack_s + 600.0)) + 0.01 for one in delay_s]),
    }
    for name, ratio in expected.items():
        assert found.terms[name].ratio == pytest.approx(ratio), name
    bills = [one.energy.cost.jobs for one in tables if one.energy is not None and one.energy.cost is not None]
    assert found.terms["money"].ratio == pytest.approx(sums(bills))
    assert found.terms["money"].ratio < 0.999, "the two replays differ"
    peaks = [one.energy.peak_w for one in tables if one.energy is not None]
    assert found.terms["peak"].ratio == pytest.approx(peaks[0] / peaks[1])
    counts = [runs[name].metrics.preemptions for name in ("priced", "tuned")]
    assert found.terms["preemptions"].ratio == pytest.approx((counts[0] + 60.0) / (counts[1] + 60.0))
    mean = np.mean([found.terms[name].ratio for name in ("time", "money", "peak", "late", "preemptions")])
    assert found.cost.ratio == pytest.approx(mean), "bounds are named, and change no cost"
    assert found.cost.low is not None
    assert found.cost.low < found.cost.ratio
    assert found.exceeded == (("urgent",) if found.terms["urgent"].ratio > 1.0 else ())


def test_tables_and_json_have_the_costs(runs: Runs, tmp_path: Path) -> None:
    text = str(runs.compare())
    assert "cost by the objective, relative to tuned; below 1 better" in text
    assert "urgent, max 1" in text
    runs.to_json(tmp_path / "r.json")
    assert '"max_gpus = 1' in (tmp_path / "r.json").read_text(encoding="utf-8").replace("\\n", '"')


def test_a_policy_equals_itself(workload: tuple[Trace, ClusterSpec]) -> None:
    both = simulate(*workload, {"a": "easy", "b": "easy"}, models="default", objective="bill")
    found = both.compare().scores["b"]
    assert found.cost.ratio == pytest.approx(1.0)
    assert all(one.ratio == pytest.approx(1.0) for one in found.terms.values())


def test_without_an_objective_there_are_no_costs(workload: tuple[Trace, ClusterSpec]) -> None:
    report = simulate(*workload, ["fifo", "easy"]).compare()
    assert (report.scores, report.objective) == ({}, "")


@pytest.mark.parametrize(
    ("objective", "models", "message"),
    [
        ("bill", None, "--objective: money can be measured only with models of power; give --models too"),
        ("peak", None, "--objective: money, peak can be measured only with models of power"),
        ("carbon", "default", r"--objective: carbon: expected carbon in \[energy\]"),
        ("cheap", "default", "objective 'cheap': expected one of"),
    ],
)
def test_objectives_that_cannot_be_measured_are_refused(
    workload: tuple[Trace, ClusterSpec], objective: str, models: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        simulate(*workload, ["fifo", "easy"], models=models, objective=objective)
