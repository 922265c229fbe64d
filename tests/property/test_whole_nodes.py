"""Random clusters and jobs, some with whole nodes: no node of these has another job at any instant."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.arrays import PLACEMENT_CODES
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision
from rlsched.workload.load import trace_demands
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from tests.support.sim.stepped import run_stepped

GROUP = st.builds(
    NodeGroup,
    count=st.integers(1, 2),
    gpus=st.sampled_from([0, 1, 2, 4]),
    cpus=st.sampled_from([4, 8]),
    vc=st.sampled_from([None, None, "a"]),
)
JOB = st.tuples(
    st.integers(0, 20),
    st.integers(1, 9),
    st.sampled_from([0, 0.3, 0.5, 1, 1, 1, 2, 3, 4, 5, 6]),
    st.sampled_from([math.nan, math.nan, 1, 2]),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "", "false", "true"]),
)
POLICIES = (
    *("fifo", "fifo-backfill", "qssf-backfill", "easy", "random"),
    Policy("easy", order="area", reserve_after="6s"),
    Policy("reserve", leave_free={"longer_than": "3s"}),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, ClusterSpec]:
    groups = draw(st.lists(GROUP, min_size=1, max_size=3).filter(lambda some: any(one.gpus for one in some)))
    jobs = draw(st.lists(JOB, min_size=1, max_size=20))
    submit, duration, gpus, cpus, vc, exclusive = (list(column) for column in zip(*jobs, strict=True))
    trace = Trace.from_columns(
        name="random",
        submit_s=submit,
        duration_s=duration,
        num_gpus=gpus,
        num_cpus=cpus,
        vc=vc,
        predicted_s=duration,
        extra={"exclusive": exclusive},
    )
    return trace, ClusterSpec(name="c", nodes=tuple(groups))


def nodes_of(table: JobTable, row: int) -> set[int]:
    return {int(table.gpu_node[g]) for g in table.gpus[row]}


def check_alone(table: JobTable) -> None:
    """Every two jobs that run at one instant, one of which has whole nodes, are on different nodes."""
    demands, which = trace_demands(table.trace)
    ran = np.flatnonzero(~table.rejected)
    assert np.isfinite(table.start_s[ran]).all(), "no job is lost"
    for row in ran.tolist():
        if not demands[which[row]].exclusive or not demands[which[row]].gpus:
            continue
        together = (table.start_s < table.end_s[row]) & (table.end_s > table.start_s[row])
        for other in np.flatnonzero(together & ~table.rejected).tolist():
            assert other == row or not nodes_of(table, row) & nodes_of(table, other)


def check_not_kept_back(table: JobTable, spec: ClusterSpec) -> None:
    """At no instant after a start or an end, a waiting job of one node could start: an independent count."""
    demands, which = trace_demands(table.trace)
    nodes, rows = spec.expand(), np.flatnonzero(~table.rejected).tolist()
    largest = max(node.gpus for node in nodes)
    for instant in sorted({*table.start_s[rows].tolist(), *table.end_s[rows].tolist()}):
        free = [node.gpus for node in nodes]
        busy, closed = [False] * len(nodes), [False] * len(nodes)
        for row in rows:
            if table.start_s[row] <= instant < table.end_s[row]:
                for g in table.gpus[row]:
                    n = int(table.gpu_node[g])
                    free[n], busy[n] = free[n] - 1, True
                    closed[n] = closed[n] or demands[which[row]].exclusive
        for row in rows:
            demand = demands[which[row]]
            if table.trace.submit_s[row] <= instant < table.start_s[row] and demand.gpus <= largest:
                assert not any(
                    free[n] >= demand.gpus and not closed[n] and not (demand.exclusive and busy[n])
                    for n in range(len(nodes))
                ), f"job {row} at {instant}"


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from(POLICIES), st.sampled_from(sorted(PLACEMENT_CODES)))
def test_no_job_runs_on_the_nodes_of_another_that_has_them_as_a_whole(
    case: tuple[Trace, ClusterSpec], policy: Policy | str, placement: str
) -> None:
    trace, spec = case[0], msgspec.structs.replace(case[1], placement=placement)
    check_alone(run_stepped(trace, spec, policy))


WHOLE = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 6), st.sampled_from(["", "", "true"])),
    min_size=1,
    max_size=20,
)


def whole_gpu_trace(jobs: list[tuple[int, int, int, str]]) -> Trace:
    submit, duration, gpus, exclusive = (list(column) for column in zip(*jobs, strict=True))
    return Trace.from_columns(
        name="random",
        submit_s=submit,
        duration_s=duration,
        num_gpus=gpus,
        predicted_s=duration,
        extra={"exclusive": exclusive},
    )


@settings(max_examples=60, deadline=None)
@given(WHOLE, st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4))
def test_no_job_that_fits_waits_under_backfill(
    jobs: list[tuple[int, int, int, str]], sizes: list[int]
) -> None:
    trace = whole_gpu_trace(jobs)
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(gpus=gpus) for gpus in sizes))
    rule = Policy("fifo-backfill").rule
    table = Engine(trace, spec, order=rule.order, oracle=True).run_rule(rule)
    check_alone(table)
    check_not_kept_back(table, spec)


class Watching(RuleScheduler):
    """A rule that checks before every decision that jobs with whole nodes share them with no job."""

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The rule's decision."""
        arrays = state.arrays
        for seq in state.running():
            if state.demands[int(arrays.job.demand[state.slot_of(seq)])].exclusive:
                for n in {state.gpu_location(g)[0] for g in state.gpus_of(seq)}:
                    assert state.jobs_on(n) == [seq]
                    assert arrays.node.free[n] == 0
        return super().decide(state, partition, now_s, record=record)


@settings(max_examples=60, deadline=None)
@given(
    WHOLE,
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
    st.sampled_from(["tiresias", "srtf", "gittins"]),
)
def test_preempted_jobs_and_those_that_preempt_keep_apart(
    jobs: list[tuple[int, int, int, str]], sizes: list[int], name: str
) -> None:
    trace = whole_gpu_trace([(60 * at_s, 240 * run_s, gpus, whole) for at_s, run_s, gpus, whole in jobs])
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(gpus=gpus) for gpus in sizes))
    policy = Policy(name)
    engine = Engine(trace, spec, order=policy.rule.order, oracle=True, rules=RunRules())
    table = engine.run_rule(policy.rule)
    assert np.isfinite(table.start_s[~table.rejected]).all(), "no job is lost"
    watched = Engine(trace, spec, order=policy.rule.order, oracle=True, rules=RunRules())
    stepped = watched.run(Watching(policy))
    np.testing.assert_array_equal(stepped.end_s, table.end_s)
    assert stepped.gpus == table.gpus
    for one in (engine, watched):
        state = one.state.arrays
        assert (state.gpu.free_milli == 1000).all(), "all resources are returned"
        np.testing.assert_array_equal(state.node.free, state.node.gpus)
