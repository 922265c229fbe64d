"""Random traces with all events of jobs: invariants hold in every run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.loop import fitting_jobs
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED, FAILED, ONGOING, PREEMPTED, TIMEOUT
from rlsched_envs.sim.attempt_log import AttemptTable, PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.node_events import NodeEvent

pytestmark = pytest.mark.filterwarnings("error")

SPEC = ClusterSpec(
    name="random", nodes=(NodeGroup(count=2, gpus=2), NodeGroup(count=1, gpus=4), NodeGroup(gpus=2, vc="v"))
)
TOTAL_GPUS = 10
EXACT_S = 1e-6
GREEDY = ("fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill")


class Restless(Scheduler):
    """Preempts at random, up to a number of times, and asks to be called at random times."""

    name = policy_id = "restless"
    oracle = True
    abilities = Abilities(preempts=True)

    def __init__(self, seed: int, times: int = 40) -> None:
        self._rng, self._left = np.random.default_rng(seed), times

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Preempt a job, start the first that fits, or wait for a while."""
        del record
        return Decision(action=self._action(state, partition, now_s), source="rule")

    def _action(self, state: ClusterState, partition: int, now_s: float) -> Action:
        job = state.arrays.job
        slots = [state.slot_of(seq) for seq in state.running()]
        able = [k for k in slots if not job.pinned[k] and job.start_s[k] < now_s]
        if able and self._left > 0 and self._rng.random() < 0.4:
            self._left -= 1
            return Preempt(int(job.seq[self._rng.choice(able)]))
        seq = next(iter(fitting_jobs(state, partition)), -1)
        if seq >= 0:
            return start_action(state, partition, seq)
        return Wait(until_s=now_s + float(self._rng.integers(1, 9)) if self._rng.random() < 0.7 else None)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Trace, RunRules]:
    """Up to 16 jobs with all columns of a trace, and nodes that all come up again."""
    count = draw(st.integers(1, 16))
    seconds = st.integers(0, 30).map(float)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    depends_on = [
        ";".join(sorted(draw(st.sets(st.sampled_from([f"j{k}" for k in range(row)]), max_size=2))))
        if row and draw(st.booleans())
        else ""
        for row in range(count)
    ]
    array_id = column(st.sampled_from(["", "x", "y"]))
    limits = {"x": draw(st.integers(1, 3)), "y": draw(st.integers(1, 3))}
    trace = Trace.from_columns(
        name="random",
        job_id=[f"j{k}" for k in range(count)],
        submit_s=column(seconds),
        duration_s=column(st.one_of(seconds, st.floats(0, 30))),
        num_gpus=column(st.sampled_from([1.0, 1.0, 2.0, 3.0, 4.0, 6.0, 12.0])),
        vc=column(st.sampled_from(["", "v"])),
        time_limit_s=column(st.sampled_from([math.nan, math.nan, 5.0, 20.0])),
        extra={
            "fail_after_s": column(st.sampled_from(["", "", "3", "0;7", "2.5;4;1"])),
            "checkpoint_s": column(st.sampled_from([math.nan, 0.0, 2.0, 0.7])),
            "restart_s": column(st.sampled_from([math.nan, 0.0, 1.5])),
            "preemptible": column(st.sampled_from(["", "true", "false"])),
            "depends_on": depends_on,
            "array_id": array_id,
            "array_limit": [float(limits[one]) if one else math.nan for one in array_id],
        },
    )
    events = draw(
        st.lists(
            st.tuples(seconds, st.integers(0, 3), st.sampled_from([NODE_DOWN, NODE_DRAINED, NODE_UP])),
            max_size=6,
        )
    )
    node_events = [NodeEvent(*event) for event in events] + [NodeEvent(31.0, n, NODE_UP) for n in range(4)]
    rules = RunRules(
        costs=PreemptionCosts(restart_s=2.0, restart_large_s=3.0, large_gpus=2),
        max_retries=draw(st.sampled_from([None, 0, 1])),
        node_events=tuple(sorted(node_events, key=lambda one: one.time_s)),
    )
    return trace, rules


def engine(trace: Trace, rules: RunRules, order: Order | None = None) -> Engine:
    return Engine(trace, SPEC, order=order, oracle=True, rules=rules)


def run(trace: Trace, rules: RunRules, name: str, seed: int) -> JobTable:
    if name == "restless":
        made = engine(trace, rules)
        table = made.run(Restless(seed))
    else:
        rule = Policy(name).rule
        made = engine(trace, rules, rule.order)
        table = made.run_rule(rule)
    free = made.state.arrays.node.free
    assert (made.state.running(), int(free.sum())) == ([], TOTAL_GPUS)  # all is given back
    return table


def attempts_of(table: JobTable, job: int) -> AttemptTable:
    assert table.log is not None
    return table.log.select(table.log.job == job)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    workloads(),
    st.sampled_from(["restless", "restless", "fifo", "qssf-backfill", "gittins"]),
    st.integers(0, 99),
)
def test_invariants_hold_on_random_traces(workload: tuple[Trace, RunRules], name: str, seed: int) -> None:
    trace, rules = workload
    table = run(trace, rules, name, seed)
    assert table.ended_by is not None
    assert table.eligible_s is not None
    no_job_is_lost(table)
    for job in np.flatnonzero(~table.rejected).tolist():
        attempts_follow_each_other(table, job)
        work_is_conserved(table, job, rules)
    no_gpu_is_given_twice(table, rules)
    no_job_starts_before_it_is_eligible(table)
    arrays_keep_their_limits(table)


def no_job_is_lost(table: JobTable) -> None:
    able = ~table.rejected
    assert not np.isnan(table.start_s[able]).any()
    assert not np.isnan(table.end_s[able]).any()
    assert np.isnan(table.start_s[table.rejected]).all()
    assert table.ended_by is not None
    assert set(table.ended_by[able].tolist()) <= {ENDED, TIMEOUT, FAILED}
    assert (table.ended_by[table.rejected] == ONGOING).all()


def attempts_follow_each_other(table: JobTable, job: int) -> None:
    mine = attempts_of(table, job)
    assert mine.attempt.tolist() == list(range(1, len(mine) + 1))
    assert (mine.start_s[1:] >= mine.end_s[:-1]).all()
    assert (table.start_s[job], table.end_s[job]) == (mine.start_s[0], mine.end_s[-1])
    assert [len(mine.gpus(k)) for k in range(len(mine))] == [table.trace.num_gpus[job]] * len(mine)
    assert table.ended_by is not None
    assert mine.reason[-1] == table.ended_by[job]
    if table.trace.extra["preemptible"][job] == "false":
        assert PREEMPTED not in mine.reason.tolist()


def work_is_conserved(table: JobTable, job: int, rules: RunRules) -> None:
    mine, trace = attempts_of(table, job), table.trace
    ran_s = mine.end_s - mine.start_s
    assert (mine.useful_s >= 0).all()
    assert (mine.useful_s <= ran_s + EXACT_S).all()
    useful_s = float(mine.useful_s.sum())
    given = str(trace.extra["fail_after_s"][job]).count(";") + 1
    failed = int(np.count_nonzero(mine.reason == FAILED))
    assert failed <= given
    if mine.reason[-1] == ENDED:
        assert useful_s == pytest.approx(trace.duration_s[job], abs=EXACT_S)
        restart_s = trace.extra["restart_s"][job]
        if np.isnan(restart_s):
            restart_s = 2.0 if trace.num_gpus[job] <= 2 else 3.0
        if len(mine) > 1:
            assert ran_s[-1] == pytest.approx(restart_s + mine.useful_s[-1], abs=EXACT_S)
    else:
        assert useful_s <= trace.duration_s[job] + EXACT_S
    if mine.reason[-1] == FAILED:
        assert rules.max_retries is not None
        assert failed == rules.max_retries + 1
    elif rules.max_retries is not None:
        assert failed <= rules.max_retries
    if not np.isnan(trace.time_limit_s[job]):
        assert (ran_s <= trace.time_limit_s[job] + EXACT_S).all()


def no_gpu_is_given_twice(table: JobTable, rules: RunRules) -> None:
    log = table.log
    assert log is not None
    held: dict[int, list[tuple[float, float]]] = {g: [] for g in range(TOTAL_GPUS)}
    for k in range(len(log)):
        for g in log.gpus(k):
            held[g].append((float(log.start_s[k]), float(log.end_s[k])))
    owners = [node.vc for node in SPEC.expand()]
    status = dict.fromkeys(range(4), NODE_UP)
    changes: dict[int, list[tuple[float, int]]] = {n: [] for n in status}
    for event in rules.node_events:
        changes[event.node].append((event.time_s, event.status))
    for g, spans in held.items():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        mine = changes[int(table.gpu_node[g])]
        for start, end in spans:
            then = [one for at, one in mine if at <= start]
            assert (then or [NODE_UP])[-1] == NODE_UP  # nothing starts on a node that is not up
            assert not any(start < at < end and one == NODE_DOWN for at, one in mine)
    for k in range(len(log)):
        vc = str(table.trace.vc[log.job[k]])
        assert {owners[table.gpu_node[g]] for g in log.gpus(k)} <= ({None, vc} if vc else {None})


def no_job_starts_before_it_is_eligible(table: JobTable) -> None:
    assert table.eligible_s is not None
    able = np.flatnonzero(~table.rejected)
    assert (table.eligible_s[able] >= table.trace.submit_s[able]).all()
    assert (table.start_s[able] >= table.eligible_s[able]).all()
    row_of = {job_id: row for row, job_id in enumerate(table.trace.job_id.tolist())}
    for job in able.tolist():
        for parent in filter(None, str(table.trace.extra["depends_on"][job]).split(";")):
            assert table.eligible_s[job] >= table.end_s[row_of[parent]]


def arrays_keep_their_limits(table: JobTable) -> None:
    assert table.eligible_s is not None
    for array in ("x", "y"):
        tasks = np.flatnonzero((table.trace.extra["array_id"] == array) & ~table.rejected)
        if not len(tasks):
            continue
        since_s, until_s = table.eligible_s[tasks], table.end_s[tasks]
        most = max(np.count_nonzero((since_s <= at) & (until_s > at)) for at in since_s)
        assert most <= np.nanmax(table.trace.extra["array_limit"][tasks])


@settings(max_examples=25, deadline=None)
@given(workloads(), st.sampled_from(GREEDY))
def test_compiled_loop_and_scheduler_agree(workload: tuple[Trace, RunRules], name: str) -> None:
    trace, rules = workload
    scheduler = RuleScheduler(Policy(name))
    compiled = engine(trace, rules, scheduler.order).run_rule(scheduler.rule)
    one_by_one = engine(trace, rules, scheduler.order).run(scheduler)
    np.testing.assert_array_equal(compiled.start_s, one_by_one.start_s)
    np.testing.assert_array_equal(compiled.end_s, one_by_one.end_s)
    assert compiled.log is not None
    assert one_by_one.log is not None
    np.testing.assert_array_equal(compiled.log.gpu, one_by_one.log.gpu)
    np.testing.assert_array_equal(compiled.log.useful_s, one_by_one.log.useful_s)
