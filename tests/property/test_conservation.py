"""Jobs that change speed: work and energy are conserved under sharing, lower clocks, interruptions and
losses.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.sim.books import Watched, clocks_are_kept, recount
from tests.support.sim.random_runs import (
    CLUSTERS,
    REL,
    Whimsical,
    all_resources_are_returned,
    disasters,
    energy_is_conserved,
    work_is_done,
    workload,
)
from tests.support.soak_size import times

pytestmark = pytest.mark.filterwarnings("error")


def watched(
    seed: int,
    name: str,
    *,
    noise: bool = True,
    switch_s: float = 0.0,
    placement: str = "consolidate",
    order: Order | None = None,
) -> Watched:
    spec = ClusterSpec(name=name, nodes=CLUSTERS[name], placement=placement)
    trace = workload(seed, 30, small=name not in ("mixed", "cut"))
    engine = Watched(
        trace,
        spec,
        order=order,
        oracle=True,
        rules=disasters(seed, spec.num_nodes),
        models=Models(workload_seed=seed, noise=noise),
    )
    engine.state.arrays.models.gpu.switch_s[:] = switch_s
    return engine


@pytest.mark.parametrize("seed", quick(range(times(12)), lambda seed: seed == 0, rest=pytest.mark.soak))
def test_work_and_energy_are_conserved(seed: int) -> None:
    name = ("mixed", "alike", "not told")[seed % 3]
    placement = ("spread", "consolidate", "fgd", "worst-fit")[seed % 4]
    engine = watched(seed, name, noise=seed % 2 == 0, placement=placement)
    scheduler = Whimsical(seed)
    table = engine.run(scheduler)
    assert scheduler.joins > 2
    assert scheduler.slowed > 3
    assert scheduler.cores > 1
    assert check_conserved(engine, table, noise=seed % 2 == 0) < 0.8


def check_conserved(engine: Watched, table: JobTable, *, noise: bool) -> float:
    """Count work, energy and ledger again. Returns the slowest rate."""
    all_resources_are_returned(engine)
    books = recount(engine, noise=noise)
    clocks_are_kept(engine)
    energy_is_conserved(table)
    assert table.energy is not None
    rows = engine._rows.tolist()
    assert table.energy.cluster_j == pytest.approx(books.cluster_j, rel=REL)
    assert table.energy.idle_j == pytest.approx(books.idle_j, rel=REL)
    counted = [books.job_j[k] for k in range(len(rows))]
    np.testing.assert_allclose(table.energy.job_j[rows], counted, rtol=REL, atol=1e-3)
    number = {row: k for k, row in enumerate(rows)}
    done = {(rows[row], attempt): work for (row, attempt), work in books.work_s.items()}
    for job in rows:
        work_is_done(table, job, done, engine.log.jobs[number[job]].restart_s)
    return books.slowest


SHARING: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "share": {"share": {"min_speed": 0.5}},
    "share and slowdown": {"share": {}, "clock": {"rule": "slowdown", "slowdown": 0.05}},
    "three jobs and cores": {"share": {"min_speed": 0.4, "max_jobs": 3}, "cores": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARING)
def test_gittins_conserves_work_and_energy(sharing: str) -> None:
    """Preempting and sharing on clusters of all kinds, with failures and removed nodes; both ways agree."""
    preempt = {"spread": 0.5, "margin": 0.1, "first_age": "8s", "tick": "5s"}
    one = RuleScheduler(Policy("gittins", preempt=preempt, **SHARING[sharing]))
    preemptions = 0
    for seed in range(times(4)):
        name, noise = ("mixed", "alike", "not told", "cut")[seed % 4], seed % 3 == 0
        engine, compiled = (watched(seed, name, noise=noise, order=one.order) for _ in range(2))
        table, other = engine.run(one), compiled.run_rule(one.rule)
        if name != "cut":  # slices are counted in `test_slices_conservation`
            check_conserved(engine, table, noise=noise)
        np.testing.assert_array_equal(table.start_s, other.start_s)
        np.testing.assert_array_equal(table.end_s, other.end_s)
        assert table.energy is not None
        assert other.energy is not None
        np.testing.assert_array_equal(table.energy.job_j, other.energy.job_j)
        assert table.log is not None
        preemptions += int((table.log.reason == PREEMPTED).sum())
    assert preemptions > 4


@pytest.mark.parametrize("seed", quick(range(3), lambda seed: seed == 0, rest=pytest.mark.soak))
def test_energy_is_conserved_where_clocks_cost_time(seed: int) -> None:
    table = watched(seed, "alike", switch_s=0.3).run(Whimsical(seed))
    energy_is_conserved(table)
    assert not np.isnan(table.end_s[~table.rejected]).any()


OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "share": {"share": {}},
    "share and cores": {"share": {"min_speed": 0.5}, "cores": True},
    "share, slowdown and cores": {
        "share": {},
        "clock": {"rule": "slowdown", "slowdown": 0.1},
        "cores": True,
    },
    "lull and cores": {"clock": {"rule": "lull", "slowdown": 0.2}, "cores": True},
    "share and clock": {"share": {"min_speed": 0.6}, "clock": {"rule": "fixed", "at": 0.7}},
    "cores": {"cores": True},
}


@pytest.mark.parametrize("options", quick(OPTIONS, "share, slowdown and cores".__eq__, rest=pytest.mark.soak))
@pytest.mark.parametrize("name", quick(CLUSTERS, lambda name: name == "mixed", rest=pytest.mark.soak))
def test_compiled_rules_and_schedulers_agree(options: str, name: str) -> None:
    """A rule with start options gives the same run compiled and decision by decision, and a sound ledger."""
    spec = ClusterSpec(name=name, nodes=CLUSTERS[name])
    joined = 0
    for seed in range(3):
        trace = workload(seed, 40, small=name not in ("mixed", "cut"))
        one = RuleScheduler(Policy(order="area", blocks=seed == 2, **OPTIONS[options]))
        named: dict[str, Any] = {
            "order": one.order,
            "oracle": True,
            "rules": disasters(seed, spec.num_nodes),
            "models": Models(workload_seed=seed),
        }
        compiled = Engine(trace, spec, **named).run_rule(one.rule)
        engine = Watched(trace, spec, **named)
        one_by_one = engine.run(one)
        np.testing.assert_array_equal(compiled.start_s, one_by_one.start_s)
        np.testing.assert_array_equal(compiled.end_s, one_by_one.end_s)
        assert compiled.energy is not None
        assert one_by_one.energy is not None
        np.testing.assert_array_equal(compiled.energy.job_j, one_by_one.energy.job_j)
        energy_is_conserved(compiled)
        all_resources_are_returned(engine)
        for span in engine.spans:
            gpus = [g for holder in span.holders for g in holder.gpus]
            joined += len(gpus) - len(set(gpus))
    assert ("share" in OPTIONS[options]) <= (joined > 0)
