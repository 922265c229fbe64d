"""Metrics of schedules under models, by hand: shared GPUs, energy, busy GPUs, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import schedule_metrics
from rlsched_agents.evaluate.modelled import Basis, ModelMetrics, model_metrics, used_gpus
from rlsched_agents.evaluate.occupancy import gpu_holds
from rlsched_agents.evaluate.pairs import compare
from rlsched_envs.sim.attempt_log import AttemptTable, ModelledAttempts
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Energy, Models

NAN = float("nan")
KWH_J = 3.6e6


def by_hand() -> JobTable:
    """Eight GPUs. a has 0 and 1 from 0 to 100 s; b joins it from 40 to 140; c has 1 GPU from 100 to 200.

    d and e each request half a GPU, on GPU 5, from 0 to 50; f has no GPUs; g runs unshared, on the GPUs of a
    and b, from the second at which b leaves.
    """
    names = ["a", "b", "c", "d", "e", "f", "g"]
    trace = Trace.from_columns(
        name="h",
        submit_s=[0.0, 40.0, 100.0, 100.0, 100.0, 150.0, 200.0],
        duration_s=[70.0, 60.0, 100.0, 50.0, 50.0, 10.0, 60.0],
        num_gpus=[2.0, 2.0, 1.0, 0.5, 0.5, 0.0, 2.0],
        num_cpus=[NAN, NAN, NAN, NAN, NAN, 1.0, NAN],
        job_id=names,
    )
    start_s = np.array([0.0, 40.0, 100.0, 100.0, 100.0, 150.0, 140.0])
    end_s = np.array([100.0, 140.0, 200.0, 150.0, 150.0, 160.0, 200.0])
    length_s = end_s - start_s
    books = ModelledAttempts(
        energy_j=np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) * KWH_J,
        share_s=np.array([40 + 30, 30 + 40, 100, 25, 25, 0, 60.0]),
        used_s=np.array([60.0, 50.0, 80.0, 10.0, 20.0, 0.0, 30.0]),
        clock_s=length_s * np.array([1.0, 0.8, 1.0, 1.0, 1.0, 0.0, 0.5]),
    )
    gpus = [(0, 1), (0, 1), (2,), (5,), (5,), (), (0, 1)]
    log = AttemptTable(
        job=np.arange(7),
        attempt=np.ones(7, np.int32),
        start_s=start_s,
        end_s=end_s,
        useful_s=trace.duration_s.copy(),
        reason=np.ones(7, np.int32),
        gpu_at=np.array([0, 2, 4, 5, 6, 7, 7, 9]),
        gpu=np.array([g for one in gpus for g in one], np.int32),
        done_s=trace.duration_s + np.array([5.0, 0, 0, 0, 0, 0, 0]),
        books=books,
    )
    return JobTable(
        trace,
        ClusterSpec(name="one", nodes=(NodeGroup(count=1, gpus=8, gpu_type="V100", cpus=48),)),
        start_s,
        end_s,
        np.zeros(7, np.bool_),
        np.full(7, ""),
        gpus,
        np.zeros(8, np.int32),
        7,
        np.empty(0),
        log=log,
        energy=Energy(books.energy_j, 10 * KWH_J, 38 * KWH_J, 200.0),
    )


def test_shared_gpus_are_held_once() -> None:
    held = gpu_holds(by_hand())
    found = sorted(zip(held.attempt.tolist(), held.start_s.tolist(), held.end_s.tolist(), strict=True))
    assert found == [
        (0, 0.0, 140.0),  # a, and b after it
        (2, 100.0, 200.0),
        (3, 100.0, 150.0),
        (4, 100.0, 150.0),
        (5, 150.0, 160.0),
        (6, 140.0, 200.0),  # g starts when b leaves: a separate hold
    ]


def test_hold_lasts_until_its_last_job_ends() -> None:
    table = by_hand()
    assert table.log is not None
    ends_s = table.log.end_s.copy()
    ends_s[1] = NAN
    held = gpu_holds(replace(table, log=replace(table.log, end_s=ends_s)))
    assert np.isnan(held.end_s[held.attempt == 0])
    assert 6 not in held.attempt, "g shares with b, which still runs"


def test_without_models_every_attempt_is_a_hold() -> None:
    table = by_hand()
    assert table.log is not None
    bare = replace(table, log=replace(table.log, books=None), energy=None)
    assert gpu_holds(bare).attempt.tolist() == list(range(7))
    assert model_metrics(bare, 8, np.ones(7, np.bool_)) == ModelMetrics()


def test_numbers() -> None:
    table = by_hand()
    one = schedule_metrics(table, num_gpus=8)
    gpu_s = 2 * 140 + 100 + 2 * 0.5 * 50 + 2 * 60
    assert one.gpu_utilisation_frac == pytest.approx(gpu_s / (8 * 200))
    used = 2 * 60 + 2 * 50 + 80 + 10 + 20 + 2 * 30
    assert one.gpu_used_frac == pytest.approx(used / (8 * 200))
    assert one.energy_kwh == pytest.approx(28)
    assert one.energy_per_job_kwh == pytest.approx(4)
    assert (one.cluster_energy_kwh, one.idle_energy_kwh, one.replay_s) == pytest.approx((38, 10, 200))
    assert one.shared_frac == pytest.approx(2 / 4), "a and b, among jobs with whole GPUs"
    clocks = 2 * 100 + 2 * 80 + 100 + 50 + 50 + 2 * 30
    assert one.sm_clock_mean_frac == pytest.approx(clocks / (2 * 100 + 2 * 100 + 100 + 50 + 50 + 2 * 60))
    assert one.lost_gpu_s == pytest.approx(5 * 2)
    steps = one.over_time
    assert steps is not None
    assert steps.gpus_used is not None
    weights = np.diff([*np.arange(0.0, 200.0, steps.step_s), 200.0])
    assert np.average(steps.gpus_used, weights=weights) / 8 == pytest.approx(one.gpu_used_frac)
    assert np.average(steps.gpus_allocated, weights=weights) / 8 == pytest.approx(one.gpu_utilisation_frac)
    assert steps.gpus_allocated[0] == pytest.approx(2)


def test_only_measured_jobs_have_energy_and_clocks() -> None:
    table = by_hand()
    measured = np.arange(7) >= 2
    one = schedule_metrics(table, 8, measured)
    assert one.energy_kwh == pytest.approx(25)
    assert one.cluster_energy_kwh == pytest.approx(38)
    assert one.shared_frac == 0
    # From 100 to 200 s: of a nothing, of b 40 of its 100 s.
    used = 2 * 50 * 0.4 + 80 + 10 + 20 + 2 * 30
    assert one.gpu_used_frac == pytest.approx(used / (8 * 100))


def test_attempt_without_length_is_no_division_by_zero() -> None:
    table = by_hand()
    assert table.log is not None
    log = replace(table.log, end_s=np.where(np.arange(7) == 2, 100.0, table.log.end_s))
    assert log.books is not None
    assert used_gpus(table, log, log.books)[2] == 0
    schedule_metrics(replace(table, log=log), 8)


def test_shared_whole_gpus_are_fragments_once() -> None:
    """Without d and e, which request halves: free GPUs are 6, 5 and 6, 5 during the time of c."""
    table = by_hand()
    keep = np.array([0, 1, 2, 6])
    assert table.log is not None
    rest = replace(
        table,
        trace=table.trace.select(keep),
        start_s=table.start_s[keep],
        end_s=table.end_s[keep],
        rejected=table.rejected[keep],
        reject_reason=table.reject_reason[keep],
        gpus=[table.gpus[k] for k in keep],
        log=replace(table.log.select(np.isin(np.arange(7), keep)), job=np.arange(4)),
        energy=None,
    )
    one = schedule_metrics(rest, 8)
    assert one.over_time is not None
    assert one.over_time.gpus_allocated == pytest.approx([2.0, (40 * 2 + 20 * 3) / 60, 3.0, 3.0])
    assert one.fragmentation_frac == 0, "no job needs more than are free"


def test_energy_is_compared_on_the_same_jobs() -> None:
    table = by_hand()
    assert table.energy is not None
    half = replace(table, energy=replace(table.energy, job_j=table.energy.job_j / 2))
    measured = np.ones(7, np.bool_)
    found = compare([half], [table], measured).energy_ratio
    assert found is not None
    assert (found.ratio, found.low) == (pytest.approx(0.5), None)
    assert compare([replace(half, energy=None)], [table], measured).energy_ratio is None


def test_share_of_measured_cells_counts_the_used_fields() -> None:
    table = by_hand()
    measured = np.ones(7, np.bool_)
    models = Models(workload_seed=4)
    catalogue = load_catalogue()
    workloads = catalogue.draw(table.trace, 4)[table.trace.num_gpus > 0]
    basis = Basis(table.trace, table.spec, measured, models)
    gangs = catalogue.draw(table.trace, 4)[table.trace.num_gpus > 1]
    assert 0 < len(gangs) < len(workloads)
    always = ("util_frac", "dynamic_w", "cores_each")

    def expected(*more: str, kinds: Sequence[str] = ("V100",)) -> float:
        """A job of one GPU runs on one node, so that its results do not depend on the node penalty."""
        of_all = catalogue.cells_behind(workloads, kinds, (*always, *more))
        of_gangs = catalogue.cells_behind(gangs, kinds, ["node_penalty"])
        return (of_all[0] + of_gangs[0]) / (of_all[1] + of_gangs[1])

    none = ModelMetrics(shared_frac=0.0, sm_clock_mean_frac=1.0)
    assert basis.measured_frac(none) == expected()
    assert basis.measured_frac(none._replace(sm_clock_mean_frac=0.9)) == expected("clock_bound")
    sharing = expected("memory_mib", "sensitivity", "pressure")
    assert basis.measured_frac(none._replace(shared_frac=0.1)) == sharing != expected()
    mixed = ClusterSpec(name="m", nodes=(*table.spec.nodes, NodeGroup(count=1, gpus=8, gpu_type="P100")))
    both = expected("speed", kinds=("P100", "V100"))
    assert Basis(table.trace, mixed, measured, models).measured_frac(none) == both
