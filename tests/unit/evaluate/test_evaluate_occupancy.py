"""Allocation and fragmentation over time: by hand, and second by second for schedules of the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import schedule_metrics
from rlsched_agents.evaluate.occupancy import (
    MAX_STEPS,
    STEPS_S,
    fragmentation,
    gpus_waiting,
    step_edges,
    step_length_s,
)
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable

RULE = Policy("fifo-backfill").rule


def replayed(trace: Trace, spec: ClusterSpec, *, keep_placements: bool = True) -> JobTable:
    return Engine(trace, spec, order=RULE.order, keep_placements=keep_placements).run_rule(RULE)


def by_hand() -> JobTable:
    """Two nodes of 4 GPUs: 3 GPUs for 100 s, then 4 for 60 s on the other; submissions from 0 to 200 s."""
    trace = Trace.from_columns(
        name="hand",
        submit_s=[0.0, 50.0, 200.0, 200.0],
        duration_s=[100.0, 60.0, 5.0, 5.0],
        num_gpus=[3.0, 4.0, 1.0, 8.0],
    )
    return replayed(trace, ClusterSpec.uniform(2, 4))


def test_fragmentation_by_hand() -> None:
    table = by_hand()
    one = schedule_metrics(table, num_gpus=8)
    assert table.start_s[:2].tolist() == [0.0, 50.0]
    # Free on the node of the 3-GPU job and on the other: 1 and 4 for 50 s, 1 and 0 for 50 s,
    # 4 and 0 for 10 s, 4 and 4 for 90 s.
    free = 50 * 5 + 50 * 1 + 10 * 4 + 90 * 8
    # The single GPU next to 3 taken ones is of no use to 3, 4 and 8 (whole nodes), for 100 s.
    assert one.fragmentation_frac == pytest.approx(100 * 0.75 / free)
    assert {size: group.fragmentation_frac for size, group in one.by_gpus.items()} == pytest.approx(
        {"1": 0.0, "3": 100 / free, "4": 100 / free, "8": 100 / free}
    )
    assert [group.fragmentation_frac for group in one.by_vc.values()] == [None]
    steps = one.over_time
    assert steps is not None
    assert (steps.from_s, steps.to_s, steps.step_s, steps.gpus_used) == (0.0, 200.0, 60.0, None)
    assert steps.gpus_allocated == pytest.approx([(180 + 40) / 60, (120 + 200) / 60, 0.0, 0.0])
    unusable = [0.75 * 60, 0.75 * 40, 0, 0]
    free_gpu_s = [50 * 5 + 10, 40 + 10 * 4 + 10 * 8, 480, 160]
    assert steps.fragmentation_frac == pytest.approx(
        [a / b for a, b in zip(unusable, free_gpu_s, strict=True)]
    )


def test_jobs_without_gpus_keep_fragmentation_and_shares_make_it_unknown() -> None:
    """Shares of one GPU are not whole ones: three of them once made the free GPUs of a node negative."""
    asks = {"plain": [2.0, 4.0, 1.0], "cpu": [2.0, 4.0, 1.0, 0.0], "shares": [2.0, 4.0, 1.0, 0.4, 0.3, 0.3]}
    found = {}
    for name, gpus in asks.items():
        trace = Trace.from_columns(
            name=name,
            submit_s=[0.0, 50.0, 100.0, *[0.0] * (len(gpus) - 3)],
            duration_s=[100.0] * len(gpus),
            num_gpus=gpus,
            num_cpus=[1.0] * len(gpus),
        )
        table = replayed(trace, ClusterSpec(name="c", nodes=(NodeGroup(count=2, gpus=4, cpus=64),)))
        found[name] = schedule_metrics(table, num_gpus=8)
        assert not table.rejected.any()
    assert found["plain"].fragmentation_frac is not None
    assert found["cpu"].fragmentation_frac == found["plain"].fragmentation_frac
    assert found["shares"].fragmentation_frac is None
    assert found["shares"].over_time is not None
    assert found["shares"].gpu_utilisation_frac > found["plain"].gpu_utilisation_frac


def test_waiting_gpus_by_hand() -> None:
    trace = Trace.from_columns(
        name="t",
        submit_s=[0.0, 20.0, 30.0, 180.0],
        duration_s=[100.0, 50.0, 10.0, 1.0],
        num_gpus=[4.0, 4.0, 3.0, 1.0],
        extra={"slack_s": np.array([600.0, 0.0, 0.0, 0.0])},
    )
    table = replayed(trace, ClusterSpec.uniform(1, 4))
    assert table.start_s.tolist() == [0.0, 100.0, 150.0, 180.0]
    edges = np.array([0.0, 60.0, 120.0, 180.0])
    every = np.ones(4, np.bool_)
    assert gpus_waiting(table, every, edges).tolist() == pytest.approx(
        [(40 * 4 + 30 * 3) / 60, (40 * 4 + 60 * 3) / 60, 30 * 3 / 60]
    )
    steps = schedule_metrics(table, num_gpus=4).over_time
    assert steps is not None
    assert steps.gpus_waiting == pytest.approx(gpus_waiting(table, every, edges).tolist())
    assert steps.gpus_waiting_slack == [0.0, 0.0, 0.0]
    assert schedule_metrics(by_hand(), num_gpus=8).over_time.gpus_waiting_slack is None  # type: ignore[union-attr]


def test_preempted_jobs_wait_between_their_attempts() -> None:
    rng = np.random.default_rng(3)
    jobs = 100
    trace = Trace.from_columns(
        name="t",
        submit_s=np.sort(rng.uniform(0.0, 3000.0, jobs)),
        duration_s=rng.uniform(10.0, 600.0, jobs),
        num_gpus=rng.choice([1.0, 2.0, 4.0], jobs),
        extra={"preemptible": np.full(jobs, "true")},
    )
    rule = Policy("srtf").rule
    table = Engine(trace, ClusterSpec.uniform(2, 4), order=rule.order).run_rule(rule)
    attempts = table.attempts
    assert len(attempts) > jobs
    edges = np.linspace(0.0, float(table.end_s.max()), 50)
    waiting = gpus_waiting(table, np.ones(jobs, np.bool_), edges)
    ran_s = np.bincount(attempts.job, attempts.end_s - attempts.start_s, minlength=jobs)
    waited_s = table.end_s - trace.submit_s - ran_s
    assert waiting @ np.diff(edges) == pytest.approx(waited_s @ trace.num_gpus)


def test_without_placements_only_fragmentation_is_unknown() -> None:
    table = by_hand()
    bare = replayed(table.trace, table.spec, keep_placements=False)
    one, other = schedule_metrics(table, num_gpus=8), schedule_metrics(bare, num_gpus=8)
    assert other.fragmentation_frac is None
    assert other.by_gpus["3"].fragmentation_frac is None
    assert one.over_time is not None
    assert other.over_time is not None
    assert other.over_time.fragmentation_frac is None
    assert other.over_time.gpus_allocated == one.over_time.gpus_allocated


def test_nothing_free_is_none_and_nothing_running_is_zero() -> None:
    trace = Trace.from_columns(
        name="full", submit_s=[0.0, 30.0, 90.0], duration_s=[90.0, 10.0, 10.0], num_gpus=[8.0, 2.0, 8.0]
    )
    table = replayed(trace, ClusterSpec.uniform(1, 8))
    full = schedule_metrics(table, num_gpus=8)
    assert full.fragmentation_frac is None
    assert full.over_time is not None
    assert full.over_time.fragmentation_frac == [None, None]
    assert full.over_time.gpus_allocated == [8.0, 8.0]
    never = np.full(3, np.nan)
    idle = schedule_metrics(replace(table, start_s=never, end_s=never, gpus=[()] * 3), num_gpus=8)
    assert idle.fragmentation_frac == 0.0
    assert idle.over_time is not None
    assert idle.over_time.gpus_allocated == [0.0, 0.0]


def test_one_instant_has_no_steps() -> None:
    table = by_hand()
    measured = np.array([True, False, False, False])
    assert step_edges(table, measured) is None
    one = schedule_metrics(table, num_gpus=8, measured=measured)
    assert (one.over_time, one.fragmentation_frac) == (None, None)


@pytest.mark.parametrize("span_s", [1.0, 12_000.0, 12_001.0, 3e6, 86_400.0 * 200, 86_400.0 * 201, 1e9])
def test_number_of_steps_is_limited(span_s: float) -> None:
    step_s = step_length_s(span_s)
    assert step_s in STEPS_S
    assert span_s <= step_s * MAX_STEPS or step_s == STEPS_S[-1]
    shorter = [one for one in STEPS_S if one < step_s]
    assert not shorter or span_s > shorter[-1] * MAX_STEPS


MIXED = ClusterSpec(
    name="mixed",
    nodes=(
        NodeGroup(count=2, gpus=8, vc="a"),
        NodeGroup(count=1, gpus=4, vc="a"),
        NodeGroup(count=1, gpus=0),
        NodeGroup(count=3, gpus=4),
        NodeGroup(count=2, gpus=2, vc="unused"),
    ),
)


def useless_to(gpus: int, vc: str, owner: str | None, size: int, free: int) -> int | None:
    """Free GPUs of a node of MIXED that are of no use to a job; None where it may not run there."""
    if owner not in (None, vc):
        return None
    largest = {"a": 8, None: 4}[owner]  # three nodes each: 8 GPUs fit on two whole ones of 4
    wanted = gpus if gpus <= largest else size
    return free if free < wanted else 0


@pytest.mark.parametrize("seed", range(4))
def test_fragmentation_second_by_second(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = 120
    trace = Trace.from_columns(
        name="mixed",
        submit_s=np.sort(rng.integers(0, 900, jobs)).astype(np.float64),
        duration_s=rng.integers(0, 120, jobs).astype(np.float64),
        num_gpus=rng.choice([1.0, 2.0, 3.0, 4.0, 8.0], jobs),
        vc=rng.choice(["a", "b"], jobs),
    )
    table = replayed(trace, MIXED)
    measured = np.arange(jobs) >= 30
    edges = step_edges(table, measured)
    assert edges is not None
    found = fragmentation(table, edges, measured)
    assert found is not None

    first, last = int(edges[0]), int(edges[-1])
    seconds = np.arange(first, last)
    nodes = MIXED.expand()
    free = np.repeat([[node.gpus] for node in nodes], last - first, axis=1)
    for start, end, gpus in zip(table.start_s, table.end_s, table.gpus, strict=True):
        for gpu in gpus:
            free[table.gpu_node[gpu]] -= (seconds >= start) & (seconds < end)
    assert free.min() == 0
    able = np.flatnonzero(measured & ~table.rejected)
    free_gpu_s, unusable_gpu_s = np.zeros(last - first), np.zeros(last - first)
    for number, node in enumerate(nodes):
        for count in range(1, node.gpus + 1):
            worth = [
                useless_to(int(trace.num_gpus[job]), str(trace.vc[job]), node.vc, node.gpus, count)
                for job in able
            ]
            may = [one for one in worth if one is not None]
            if may:
                free_gpu_s[free[number] == count] += count
                unusable_gpu_s[free[number] == count] += np.mean(may)
    step = ((seconds - first) // step_length_s(last - first)).astype(np.int64)
    np.testing.assert_allclose(found.free_gpu_s, np.bincount(step, free_gpu_s))
    np.testing.assert_allclose(found.unusable_gpu_s, np.bincount(step, unusable_gpu_s), atol=1e-9)
    assert 0 < found.unusable_gpu_s.sum() < found.free_gpu_s.sum()


def test_order_of_a_job_s_gpus_does_not_matter() -> None:
    """On two nodes alternately, each has as many taken as in consecutive order."""
    table, found = by_hand(), []
    for first, second in (((0, 1, 4), (2, 3, 5, 6)), ((0, 4, 1), (2, 5, 3, 6)), ((4, 1, 0), (6, 3, 5, 2))):
        moved = replace(table, gpus=[first, second, *table.gpus[2:]])
        found.append(schedule_metrics(moved, num_gpus=8))
    assert found[0].fragmentation_frac != schedule_metrics(table, num_gpus=8).fragmentation_frac
    assert found[1] == found[2] == found[0]
