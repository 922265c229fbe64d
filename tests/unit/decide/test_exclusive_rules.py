"""Rules with jobs that have whole nodes: reservations, preemption, quotas, filters, and later GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.placement import class_fits, fits
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise
from rlsched.decide.options import PLAIN_START
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.plan import ends_by_gpu
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rules.victims import find_victims, find_victims_of_nodes
from rlsched.power_down.need import nodes_filled
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from tests.support.sim.board import modelled, node
from tests.support.sim.play import attempts, trace_of

Jobs = Sequence[tuple[float, float, float, str]]
"""Submission, duration, GPUs, and `true` for whole nodes."""
WHOLE = "true"


def engine(jobs: Jobs, policy: Policy, *sizes: int, **more: object) -> Engine:
    trace = trace_of([job[:3] for job in jobs], exclusive=[job[3] for job in jobs])
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(gpus=gpus) for gpus in sizes))
    return Engine(trace, spec, order=policy.rule.order, oracle=True, **more)  # type: ignore[arg-type]


def starts(jobs: Jobs, policy: Policy, *sizes: int) -> list[float]:
    return list(engine(jobs, policy, *sizes).run_rule(policy.rule).start_s.tolist())


def spans(jobs: Jobs, policy: Policy, *sizes: int) -> list[tuple[str, float, float]]:
    """Every attempt: job, start, end."""
    table = engine(jobs, policy, *sizes, rules=RunRules()).run_rule(policy.rule)
    return [(job, start_s, end_s) for job, _, start_s, end_s, _, _ in attempts(table)]


class TestReservation:
    """Under EASY the first job that does not fit has a reservation, which counts whole nodes."""

    def test_job_with_a_whole_node_reserves_it(self) -> None:
        """At 10 the node of 4 is empty; the long job would still be on it, the short one not."""
        jobs = [(0, 10, 1, ""), (1, 5, 2, WHOLE), (2, 50, 1, ""), (2, 8, 1, "")]
        assert starts(jobs, Policy("easy"), 4) == [0, 10, 15, 2]

    def test_job_on_another_node_does_not_delay_it(self) -> None:
        """The head needs the node of 4, and the long job fits the node of 2."""
        jobs = [(0, 10, 4, ""), (1, 5, 3, WHOLE), (2, 50, 2, ""), (2, 50, 1, "")]
        assert starts(jobs, Policy("easy"), 4, 2) == [0, 10, 2, 15]

    def test_job_with_a_whole_node_delays_a_gang(self) -> None:
        """The gang gets both nodes at 10: a long job with a node as a whole would keep one of them."""
        jobs = [(0, 10, 2, ""), (1, 5, 4, ""), (2, 50, 1, WHOLE), (2, 8, 1, WHOLE)]
        assert starts(jobs, Policy("easy"), 2, 2) == [0, 10, 15, 2]


class TestPreemption:
    """Jobs with whole nodes leave for others, and others for them."""

    def test_job_with_a_whole_node_leaves_for_a_shorter_one(self) -> None:
        """Job b needs 3 GPUs, and the node of job a has them, although a uses only one."""
        found = spans([(0, 10_000, 1, WHOLE), (600, 60, 3, "")], Policy("gittins"), 4)
        assert found[:2] == [("a", 0, 600), ("b", 600, 660)]

    def test_all_jobs_of_a_node_leave_for_one_with_a_whole_node(self) -> None:
        """Job c gets the node of a and b: on the other node runs one job more."""
        long = [(0, 20_000, 1, ""), (0, 20_000, 1, ""), *[(0, 20_000, 1, "")] * 3]
        found = spans([*long, (600, 60, 1, WHOLE)], Policy("gittins"), 3, 2)
        (began,) = [start_s for job, start_s, _ in found if job == "f"]
        assert began == 600
        assert len([end_s for _, start_s, end_s in found if start_s == 0 and end_s == 600]) == 2

    def test_no_job_leaves_in_vain(self) -> None:
        """Job b must not be preempted: job a stays until b has ended."""
        policy, spec = Policy("gittins"), ClusterSpec.uniform(1, 2)
        trace = trace_of(
            [(0, 20_000, 1), (0, 700, 1), (600, 100, 1)],
            exclusive=["", "", WHOLE],
            preemptible=["", "false", ""],
        )
        run = Engine(trace, spec, order=policy.rule.order, oracle=True, rules=RunRules())
        found = [
            (job, start_s, end_s) for job, _, start_s, end_s, _, _ in attempts(run.run_rule(policy.rule))
        ]
        assert found[:3] == [("a", 0, 700), ("b", 0, 700), ("c", 700, 800)]

    def test_job_with_a_whole_node_has_its_quota(self) -> None:
        """Under SRTF job b is the shorter one, and counts as 4 GPUs: a leaves, as it would for 4 GPUs."""
        for gpus, whole in ((1, WHOLE), (4, "")):
            found = spans([(0, 7200, 1, ""), (600, 60, gpus, whole)], Policy("srtf"), 4)
            assert found[:2] == [("a", 0, 600), ("b", 600, 660)]

    def test_quota_of_a_running_job_is_that_of_its_nodes(self) -> None:
        """Under SRTF job b has the first 4 GPUs of the quota of 4, so that a leaves, with one GPU in use."""
        found = spans([(0, 7200, 1, WHOLE), (600, 60, 4, "")], Policy("srtf"), 4)
        assert found[:2] == [("a", 0, 600), ("b", 600, 660)]


@dataclass
class Held:
    """A running job of the random clusters."""

    gpus: list[int]
    exclusive: bool
    index: float


def with_jobs(sizes: list[int], jobs: list[Held]) -> ClusterState:
    state = ClusterState(
        [NodeSpec(name=f"n{k}", gpus=gpus) for k, gpus in enumerate(sizes)], OrderedQueue(Order())
    )
    for job in jobs:
        demand = Demand(gpus=len(job.gpus), exclusive=job.exclusive)
        seq = state.add_job(demand=demand, submit_s=0.0, predicted_s=9.0, spread=1.0)
        state.start(seq, job.gpus, 0.0)
    return state


def class_starts(state: ClusterState, demand: Demand) -> bool:
    """Whether a job with this demand can start."""
    c = state.demand_number(demand)  # may replace the arrays
    return bool(class_fits(state.arrays, 0, c))


def drawn(rng: np.random.Generator) -> tuple[list[int], list[Held]]:
    """Unequal nodes with jobs on one or two of them, some with whole nodes."""
    sizes = rng.integers(1, 6, int(rng.integers(1, 5))).tolist()
    first = np.cumsum([0, *sizes]).tolist()
    free = [list(range(first[n], first[n + 1])) for n in range(len(sizes))]
    jobs = []
    for _ in range(int(rng.integers(1, 8))):
        exclusive = bool(rng.random() < 0.4)
        some = [n for n in range(len(sizes)) if free[n] and (not exclusive or len(free[n]) == sizes[n])]
        if not some:
            continue
        on = rng.choice(some, min(int(rng.integers(1, 3)), len(some)), replace=False).tolist()
        gpus = [g for n in sorted(on) for g in free[n][: int(rng.integers(1, len(free[n]) + 1))]]
        for n in on:
            free[n] = [] if exclusive else [g for g in free[n] if g not in gpus]
        index = -math.inf if rng.random() < 0.25 else float(rng.integers(0, 6))
        jobs.append(Held(gpus, exclusive, index))
    return sizes, jobs


def test_victims_make_room_and_no_more() -> None:
    """Victims are found if a gang of one node fits a new cluster without all jobs that may leave."""
    rng, found = np.random.default_rng(4), 0
    for _ in range(300):
        sizes, jobs = drawn(rng)
        gpus, above = int(rng.choice([1, 2, 3, 4, 5, 8])), float(rng.integers(-1, 3))
        state = with_jobs(sizes, jobs)
        if fits(state.arrays, 0, gpus):
            continue
        stay = [job for job in jobs if job.index <= above]
        possible = bool(fits(with_jobs(sizes, stay).arrays, 0, gpus))
        index = np.full(state.arrays.job.shape[0], -math.inf)
        for seq, job in enumerate(jobs):
            index[state.slot_of(seq)] = job.index
        gone = list[int]()
        while not fits(state.arrays, 0, gpus):
            out = int(find_victims(state.arrays, 0, gpus, index, above)[0])
            if out >= 0 or gpus <= max(sizes):  # larger gangs get only nodes of the largest size
                assert (out >= 0) == possible
            if out < 0:
                break
            assert index[out] > above
            gone.append(int(state.arrays.job.seq[out]))
            state.preempt(gone[-1], 1.0)
        for kept in gone if gpus <= max(sizes) else ():
            left = [job for seq, job in enumerate(jobs) if seq == kept or seq not in gone]
            assert not fits(with_jobs(sizes, left).arrays, 0, gpus), "each of them is needed"
        found += any(jobs[seq].exclusive for seq in gone)
    assert found > 20


@pytest.mark.slow
def test_victims_empty_whole_nodes_and_no_more() -> None:
    """Victims are found if a job of one node fits a new cluster without all jobs that may leave."""
    rng, found = np.random.default_rng(5), 0
    for _ in range(300):
        sizes, jobs = drawn(rng)
        above = float(rng.integers(-1, 3))
        demand = Demand(gpus=int(rng.choice([1, 2, 3, 4, 5, 8])), exclusive=True)
        state = with_jobs(sizes, jobs)
        c = state.demand_number(demand)
        if class_fits(state.arrays, 0, c):
            continue
        stay = with_jobs(sizes, [job for job in jobs if job.index <= above])
        possible = class_starts(stay, demand)
        index = np.full(state.arrays.job.shape[0], -math.inf)
        for seq, job in enumerate(jobs):
            index[state.slot_of(seq)] = job.index
        gone = list[int]()
        while not class_fits(state.arrays, 0, c):
            out = int(find_victims_of_nodes(state.arrays, 0, c, index, above)[0])
            if out >= 0 or demand.gpus <= max(sizes):  # larger gangs get only nodes of the largest size
                assert (out >= 0) == possible
            if out < 0:
                assert not gone, "no job left in vain"
                break
            assert index[out] > above
            gone.append(int(state.arrays.job.seq[out]))
            state.preempt(gone[-1], 1.0)
        for kept in gone if demand.gpus <= max(sizes) else ():
            left = with_jobs(sizes, [job for seq, job in enumerate(jobs) if seq == kept or seq not in gone])
            assert not class_starts(left, demand), "each of them is needed"
        found += len(gone) > 1
    assert found > 10


def test_job_without_gpus_stays_and_keeps_its_node() -> None:
    state = ClusterState([NodeSpec(name=f"n{n}", gpus=2, cpus=8) for n in range(2)], OrderedQueue(Order()))
    alone = Demand(gpus=1, exclusive=True)
    for demand, gpus, host in (
        (Demand(gpus=0, cpu_milli=1000), [], 0),
        (Demand(gpus=1), [0], 0),
        (Demand(gpus=2), [2, 3], 1),
    ):
        state.start(
            state.add_job(demand=demand, submit_s=0.0, predicted_s=9.0, spread=1.0), gpus, 0.0, node=host
        )
    index = np.full(state.arrays.job.shape[0], 5.0)
    c = state.demand_number(alone)
    assert find_victims_of_nodes(state.arrays, 0, c, index, 0.0)[:2] == (state.slot_of(2), 2)
    index[state.slot_of(2)] = -math.inf
    assert find_victims_of_nodes(state.arrays, 0, c, index, 0.0)[0] == -1


def test_no_node_is_emptied_for_a_job_that_requests_more_free_memory_than_its_gpus_have() -> None:
    state = ClusterState([NodeSpec(name=f"n{n}", gpus=2) for n in range(2)], OrderedQueue(Order()))
    for demand, gpus in ((Demand(gpus=1), [0]), (Demand(gpus=2), [2, 3])):
        state.start(state.add_job(demand=demand, submit_s=0.0, predicted_s=9.0, spread=1.0), gpus, 0.0)
    index = np.full(state.arrays.job.shape[0], 5.0)
    one, two = (state.demand_number(Demand(gpus=k, exclusive=True, gpu_free_mib=8_000)) for k in (1, 2))

    def victim(c: int) -> int:
        return int(find_victims_of_nodes(state.arrays, 0, c, index, 0.0)[0])

    assert victim(one) == victim(two) == state.slot_of(0), "it has the fewest GPUs"
    state.limit_gpu_memory(0, {0: 7_999})
    assert (victim(one), victim(two)) == (state.slot_of(0), state.slot_of(1))
    state.limit_gpu_memory(1, {1: 7_999})
    assert (victim(one), victim(two)) == (state.slot_of(0), -1)


def test_share_that_long_jobs_leave_free_counts_whole_nodes() -> None:
    """Half of 8 GPUs stays free: a long job may have one node as a whole, and a second one may not start."""
    policy = Policy("reserve", leave_free={"longer_than": "3s", "share": 0.5})
    jobs = [(0, 10, 1, WHOLE), (1, 10, 1, WHOLE), (1, 2, 1, WHOLE)]
    assert starts(jobs, policy, 4, 4) == [0, 10, 1]
    others = [(0, 10, 1, ""), (1, 10, 1, ""), (1, 2, 1, "")]
    assert starts(others, policy, 4, 4) == [0, 1, 1]


def test_gpus_of_a_node_that_a_job_has_as_a_whole_are_free_together() -> None:
    state = modelled(node("n0", 2, "V100"), node("n1", 2, "A100"))
    demand = Demand(gpus=1, exclusive=True)
    seq = state.add_job(demand=demand, submit_s=0.0, predicted_s=100.0, spread=0.5)
    state.start(seq, [3], 0.0)
    ends = specialise(ends_by_gpu, MODELLED=True)
    options = PLAIN_START._replace(chooses_type=True, later=1.0)
    assert ends(state.arrays, 0, 40.0, options).tolist() == [0, 0, 60, 60]


def test_job_with_whole_nodes_fills_nodes() -> None:
    four = NodeSpec(name="n", gpus=4)
    filled = [nodes_filled(Demand(gpus=gpus, exclusive=True), four) for gpus in (1, 4, 5, 9)]
    assert filled == [1, 1, 2, 3]
    assert nodes_filled(Demand(gpus=1), four) == 0.25


def test_compiled_start_of_a_job_equals_that_by_predictions() -> None:
    """The head's reservation moves with a job that outlives its prediction; other jobs keep off its node."""
    jobs = [(0, 30, 1, ""), (1, 5, 1, WHOLE), (2, 100, 1, "")]
    run = engine(
        jobs, Policy("easy"), 2, predictions=PredictedTimes(np.array([10.0, 5.0, 100.0]), np.ones(3))
    )
    assert run.run_rule(Policy("easy").rule).start_s.tolist() == [0, 30, 35]
    state = run.state
    number = state.demand_number(Demand(gpus=1, exclusive=True))
    assert class_fits(state.arrays, 0, number)
