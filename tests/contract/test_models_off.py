"""Formulas at their limits: unshared, at full clock, with enough cores, jobs run exactly as in the trace."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models


def with_models(trace: Trace, spec: ClusterSpec, name: str, **named: object) -> JobTable:
    """A run with unused models; checks that every rate was exactly 1."""
    rule = Policy(name).rule
    engine = Engine(trace, spec, order=rule.order, models=Models(), **named)
    table = engine.run_rule(rule)
    assert engine.arrays.progress.books.lost_s[0] == 0.0
    assert (engine.arrays.progress.work.rate[engine.state.arrays.job.generation == 0] <= 1.0).all()
    energy = table.energy
    assert energy is not None
    assert energy.job_j.sum() + energy.idle_j == pytest.approx(energy.cluster_j, rel=1e-9)
    return table


@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf", "qssf-backfill"])
def test_run_equals_the_run_without_models(name: str) -> None:
    trace, spec = synthesize("itp", jobs=1500, load=1.0, gpus=64, seed=7)
    policy = Policy(name)
    predictions = predict_trace(trace, spec, oracle=policy.oracle)
    plain = Engine(trace, spec, order=policy.rule.order, predictions=predictions).run_rule(policy.rule)
    modelled = with_models(trace, spec, name, predictions=predictions)
    np.testing.assert_array_equal(modelled.start_s, plain.start_s)
    np.testing.assert_array_equal(modelled.end_s, plain.end_s)
    assert plain.energy is None
    assert [modelled.gpus[k] for k in range(1500)] == [plain.gpus[k] for k in range(1500)]


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf"])
def test_every_start_and_end_of_the_published_simulator(shared_data: Path, name: str) -> None:
    folder = shared_data / "fidelity"
    trace = Trace.read(folder / "philly_week.csv.gz")
    spec = ClusterSpec.read(folder / "philly_week.cluster.toml")
    table = with_models(trace, spec, name, oracle=Policy(name).oracle)
    with gzip.open(folder / f"expected_{name}_60.csv.gz", "rt", encoding="utf-8", newline="") as file:
        expected = {
            row["job_id"]: (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(file)
        }
    starts, ends = np.array([expected[job] for job in trace.job_id.tolist()]).T
    np.testing.assert_array_equal(table.start_s, starts)
    np.testing.assert_array_equal(table.end_s, ends)
