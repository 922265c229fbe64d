"""MIG slices among whole GPUs, at random: energy and work are conserved, and a slice has only one job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.models.slice_name import is_slice
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.sim.books import Watched, recount
from tests.support.sim.random_runs import (
    CUT,
    REL,
    Whimsical,
    all_resources_are_returned,
    disasters,
    energy_is_conserved,
    work_is_done,
    workload,
)
from tests.support.sim.sleeping_runs import POWER, WatchedAsleep, moody

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_work_and_energy_are_conserved(seed: int) -> None:
    placement = ("spread", "consolidate", "fgd", "worst-fit")[seed % 4]
    spec = ClusterSpec(name="cut", nodes=CUT, placement=placement)
    trace = workload(seed, 60, small=False)
    engine = Watched(
        replace(trace, gpu_type=np.where(trace.num_gpus == 1, "", trace.gpu_type)),
        spec,
        oracle=True,
        rules=disasters(seed, spec.num_nodes),
        models=Models(workload_seed=seed, noise=seed % 2 == 0),
    )
    engine.state.arrays.models.gpu.switch_s[:] = 0.0
    scheduler = Whimsical(seed)
    table = engine.run(scheduler)
    assert scheduler.joins + scheduler.slowed > 2
    all_resources_are_returned(engine)
    each_slice_has_one_job(engine)
    books = recount(engine, noise=seed % 2 == 0)
    energy_is_conserved(table)
    assert table.energy is not None
    assert table.energy.cluster_j == pytest.approx(books.cluster_j, rel=REL)
    assert table.energy.idle_j == pytest.approx(books.idle_j, rel=REL)
    rows = engine._rows.tolist()
    counted = [books.job_j[k] for k in range(len(rows))]
    np.testing.assert_allclose(table.energy.job_j[rows], counted, rtol=REL, atol=1e-3)
    number = {row: k for k, row in enumerate(rows)}
    done = {(rows[row], attempt): work for (row, attempt), work in books.work_s.items()}
    for job in rows:
        work_is_done(table, job, done, engine.log.jobs[number[job]].restart_s)


def each_slice_has_one_job(engine: Watched) -> None:
    """A job on a slice has one GPU, the whole slice at full clock, and leaves a tenth of its memory free."""
    nodes, a, truth = engine.spec.expand(), engine.state.arrays, engine.arrays.truth
    cut = np.array([is_slice(nodes[n].gpu_type) for n in a.gpu.node.tolist()])
    seen = 0
    for span in engine.spans:
        on = [(g, one) for one in span.holders for g in one.gpus if cut[g]]
        assert len({g for g, _ in on}) == len(on)
        for g, one in on:
            assert one.clock == 1.0
            assert len(one.gpus) == 1
            demand = engine.state.demands[int(truth.demand[one.row])]
            assert demand.whole
            kind = int(a.node.kind[a.gpu.node[g]])
            needs_mib = a.models.trait.memory_mib[int(truth.workload[one.row]), kind]
            assert needs_mib <= 0.9 * a.models.gpu.memory_mib[kind]
        seen += len(on)
    assert seen > 4


@pytest.mark.parametrize("seed", quick(range(3), lambda seed: seed < 1, rest=pytest.mark.soak))
def test_energy_is_conserved_where_nodes_with_slices_sleep(seed: int) -> None:
    engine = WatchedAsleep(
        workload(seed, 30, small=False),
        ClusterSpec(name="cut", nodes=CUT),
        oracle=True,
        rules=RunRules(costs=PreemptionCosts(3.0, 5.0, 2)),
        models=moody(seed),
    )
    table = engine.run(Whimsical(seed))
    all_resources_are_returned(engine)
    energy_is_conserved(table)
    books = recount(engine, noise=True, power=POWER)
    assert table.energy is not None
    assert table.energy.cluster_j == pytest.approx(books.cluster_j, rel=REL)
    assert table.energy.idle_j == pytest.approx(books.idle_j, rel=REL)
    assert table.slept is not None
    assert table.slept.asleep_node_s > 0
