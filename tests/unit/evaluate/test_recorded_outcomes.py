"""Predicted and seen speed and energy of attempts in the store of a replay."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import rlsched as rs
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import PlanSeen
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.timeline import AttemptSeen
from rlsched.workload.trace import Trace
from rlsched_envs.sim.modelling import Models

V100 = ClusterSpec(name="v", nodes=(NodeGroup(count=2, gpus=8, gpu_type="V100", cpus=48),))
ONE_NODE = ClusterSpec(name="o", nodes=(NodeGroup(count=1, gpus=8, gpu_type="V100"),))
MIXED = ClusterSpec(
    name="m", nodes=tuple(NodeGroup(count=2, gpus=8, gpu_type=kind, cpus=48) for kind in ("V100", "A100"))
)
FRUGAL = Policy("fifo", clock={"rule": "fixed", "at": 0.7})
EXACT = Models(noise=False)
WORKLOAD = "transformer-multi30k-b16"


def replay(
    folder: Path,
    policy: Policy | str,
    jobs: list[tuple[float, float, float, float]],
    *,
    spec: ClusterSpec = V100,
    models: Models | None = EXACT,
) -> tuple[list[AttemptSeen], list[PlanSeen]]:
    """Attempts, and the plans that started them. `jobs`: (submission, run time, GPUs, cores)."""
    submit_s, duration_s, num_gpus, num_cpus = (list(column) for column in zip(*jobs, strict=True))
    trace = Trace.from_columns(
        name="t",
        submit_s=submit_s,
        duration_s=duration_s,
        num_gpus=num_gpus,
        num_cpus=num_cpus,
        extra={"predicted_duration": np.array(duration_s), "workload": np.array([WORKLOAD] * len(jobs))},
    )
    rs.simulate(trace, spec, {"p": policy}, records=folder, models=models)
    reader = StoreReader(folder / "p")
    reader.refresh()
    records = [reader.record(row) for row in range(len(reader))]
    return reader.timeline.attempts, [plan for one in records for plan in one.plans if plan.chosen]


ONE_BY_ONE = [(100_000.0 * k, 3600.0, gpus, cores) for k, (gpus, cores) in enumerate(
    [(1.0, 6.0), (1.0, 1.0), (4.0, 24.0), (12.0, 72.0), (0.5, 3.0), (1.0, 0.0)]
)]  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "tuned", FRUGAL])
@pytest.mark.parametrize("spec", [V100, MIXED])
def test_alone_the_prediction_comes_true(tmp_path: Path, policy: Policy | str, spec: ClusterSpec) -> None:
    seen, plans = replay(tmp_path, policy, ONE_BY_ONE, spec=spec)
    assert len(seen) == len(plans) == len(ONE_BY_ONE)
    for one, plan in zip(seen, plans, strict=True):
        assert one.speed_frac == pytest.approx(one.predicted_speed_frac)
        assert one.run_s == pytest.approx(plan.run_s)
        assert one.energy_j == pytest.approx(one.predicted_energy_j)
        assert plan.cores_w
    if policy is FRUGAL:
        assert {one.sm_clock_frac for one in seen} == {0.7}
        assert min(one.predicted_speed_frac for one in seen) < 0.99


def test_next_to_a_longer_job_the_prediction_comes_true(tmp_path: Path) -> None:
    jobs = [(0.0, 90_000.0, 16.0, 96.0), (60.0, 1800.0, 16.0, 96.0)]
    (_, joined), (alone, plan) = replay(tmp_path, "pack", jobs)
    assert (alone.how, plan.how, plan.rate) == ("free", "share", pytest.approx(joined.predicted_speed_frac))
    assert joined.predicted_speed_frac < 0.9
    assert joined.speed_frac == pytest.approx(joined.predicted_speed_frac)
    assert joined.energy_j == pytest.approx(joined.predicted_energy_j, rel=0.01)


def test_lucids_plans_have_the_speed_of_the_models(tmp_path: Path) -> None:
    jobs = [(0.0, 90_000.0, 8.0, 0.0), (60.0, 1800.0, 8.0, 0.0)]
    (_, joined), (_, plan) = replay(tmp_path, "lucid", jobs, spec=ONE_NODE)
    assert plan.how == "share"
    assert joined.predicted_speed_frac == plan.speed_frac < 1.0
    assert plan.speed_frac - plan.gain_frac == pytest.approx(1.0 - plan.speed_frac)
    assert joined.speed_frac == pytest.approx(plan.speed_frac, rel=0.01)


def test_second_half_of_a_gpu_is_predicted_to_be_slower(tmp_path: Path) -> None:
    (first, second), _ = replay(tmp_path, "fifo", [(0.0, 90_000.0, 0.5, 0.0), (60.0, 1800.0, 0.5, 0.0)])
    assert first.gpus == second.gpus
    assert first.predicted_speed_frac == 1.0 > second.predicted_speed_frac
    assert second.speed_frac == pytest.approx(second.predicted_speed_frac)
    assert second.energy_j == pytest.approx(second.predicted_energy_j, rel=0.01)


def test_without_models_nothing_is_predicted_or_seen(tmp_path: Path) -> None:
    (one,), (plan,) = replay(tmp_path, "fifo", [(0.0, 60.0, 1.0, 0.0)], models=None)
    assert (plan.rate, plan.gpu_w, plan.cores_w) == (None, None, None)
    known = [one.predicted_speed_frac, one.predicted_energy_j, one.speed_frac, one.energy_j]
    assert all(math.isnan(value) for value in known)


def test_job_without_gpus_has_no_predicted_speed(tmp_path: Path) -> None:
    (one,), (plan,) = replay(tmp_path, "fifo", [(0.0, 60.0, 0.0, 4.0)])
    assert plan.rate is None
    assert math.isnan(one.predicted_speed_frac)
    assert (one.speed_frac, one.energy_j > 0.0) == (1.0, True)
