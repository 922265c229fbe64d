"""Rules that preempt: compiled, through the `Scheduler` interface, and second by second in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED, REASONS
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.node_events import NodeEvent
from tests.quick import quick

COSTS = PreemptionCosts(restart_s=2.0, restart_large_s=3.0, large_gpus=3)
LAS = Policy("tiresias", name="las", preempt={"threshold_gpu_s": 15.0, "tick": "4s"})
POLICIES = {"srtf": Policy("srtf"), "las": LAS}

SIZES = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, 8])
JOB = st.tuples(
    st.integers(0, 30),
    st.integers(0, 20),
    SIZES,
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "false"]),
)
GROUP = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, None, "a", "b"]))
EVENT = st.tuples(st.integers(0, 60), st.sampled_from([NODE_DOWN, NODE_DRAINED]), st.integers(1, 40))


@dataclass
class Case:
    """A workload on a cluster, and what happens to its nodes."""

    trace: Trace
    spec: ClusterSpec
    events: tuple[NodeEvent, ...] = ()

    def engine(self, policy: Policy) -> Engine:
        rules = RunRules(costs=COSTS, node_events=self.events)
        return Engine(self.trace, self.spec, order=policy.rule.order, oracle=True, rules=rules)


@st.composite
def cases(draw: st.DrawFn, *, one_pool: bool = False) -> Case:
    jobs = draw(st.lists(JOB, min_size=1, max_size=25))
    submit, duration, gpus, vc, preemptible = (list(column) for column in zip(*jobs, strict=True))
    duration = [max(one, 1) for one in duration] if one_pool else duration
    columns = {} if one_pool else {"vc": vc, "extra": {"preemptible": preemptible}}
    trace = Trace.from_columns(name="random", submit_s=submit, duration_s=duration, num_gpus=gpus, **columns)
    groups = draw(st.lists(GROUP, min_size=1, max_size=3))
    nodes = tuple(NodeGroup(count=n, gpus=g, vc=None if one_pool else owner) for n, g, owner in groups)
    spec = ClusterSpec(name="c", nodes=nodes)
    events = []
    if not one_pool:
        for at_s, status, for_s in draw(st.lists(EVENT, max_size=2)):
            n = draw(st.integers(0, len(spec.expand()) - 1))
            events += [NodeEvent(at_s, n, status), NodeEvent(at_s + for_s, n, NODE_UP)]
    return Case(trace, spec, tuple(sorted(events, key=lambda event: event.time_s)))


def place(free: list[int], sizes: list[int], gpus: int) -> list[tuple[int, int]]:
    """*consolidate* on one pool: (node, GPUs) pairs, empty where the gang does not fit."""
    if gpus <= max(sizes):
        holding = [(free[n], n) for n in range(len(free)) if free[n] >= gpus]
        return [(min(holding)[1], gpus)] if holding else []
    out, left = [], gpus
    for n in sorted(range(len(free)), key=lambda n: (-sizes[n], n)):
        if free[n] == sizes[n] <= left:
            out.append((n, sizes[n]))
            left -= sizes[n]
    used = {n for n, _ in out}
    rest = [(-free[n], n) for n in range(len(free)) if n not in used]
    if left == 0:
        return out
    return [*out, (min(rest)[1], left)] if rest and -min(rest)[0] >= left else []


def second_by_second(case: Case, policy: Policy) -> list[list[tuple[int, int]]]:
    """(start, end) of every attempt of every job: one pool, and a walk at every second that is a tick."""
    by = policy.settings.preempt
    assert by is not None
    trace, sizes = case.trace, [node.gpus for node in case.spec.expand()]
    gpus, submit = trace.num_gpus.astype(int).tolist(), trace.submit_s.astype(int).tolist()
    todo = [row for row in range(len(trace)) if gpus[row] <= sum(sizes)]
    left = trace.duration_s.astype(int).tolist()  # work
    restart, attained = [0] * len(trace), [0] * len(trace)  # still to be paid; GPU-seconds
    free, where = list(sizes), {}
    attempts: list[list[tuple[int, int]]] = [[] for _ in trace.job_id]
    began: dict[int, int] = {}
    waiting: list[int] = []
    tick, now = int(by.tick) or 1, 0
    while todo or waiting or began:
        for row in [row for row in began if restart[row] == left[row] == 0]:
            attempts[row].append((began.pop(row), now))
            for n, count in where.pop(row):
                free[n] += count
        while todo and submit[todo[0]] == now:
            waiting.append(todo.pop(0))
        if now % tick == 0:

            def rank(row: int) -> tuple[bool, int, int]:
                key = submit[row] if policy.settings.order is None else left[row] + restart[row]
                return attained[row] > by.threshold_gpu_s, key, row

            quota, out, into = sum(sizes), [], []
            for row in sorted([*waiting, *began], key=rank):
                if gpus[row] <= quota:
                    quota -= gpus[row]
                    into += [row] if row in waiting else []
                elif row in began:
                    out.append(row)
            for row in out:
                attempts[row].append((began.pop(row), now))
                restart[row] = 3 if gpus[row] > 3 else 2
                for n, count in where.pop(row):
                    free[n] += count
                waiting.append(row)
            for row in into:
                if found := place(free, sizes, gpus[row]):
                    waiting.remove(row)
                    began[row], where[row] = now, found
                    for n, count in found:
                        free[n] -= count
        for row in began:
            attained[row] += gpus[row]
            if restart[row]:
                restart[row] -= 1
            else:
                left[row] -= 1
        now += 1
    return attempts


def attempts_of(table: JobTable) -> list[list[tuple[float, float]]]:
    log = table.log
    assert log is not None
    out: list[list[tuple[float, float]]] = [[] for _ in table.trace.job_id]
    for k, row in enumerate(log.job.tolist()):
        out[row].append((float(log.start_s[k]), float(log.end_s[k])))
    return out


def check_equal(one: JobTable, two: JobTable) -> None:
    assert attempts_of(one) == attempts_of(two)
    assert one.gpus == two.gpus
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.log is not None
    assert two.log is not None
    np.testing.assert_array_equal(one.log.reason, two.log.reason)
    np.testing.assert_array_equal(one.log.gpu, two.log.gpu)


def check_valid(table: JobTable) -> None:
    """No job lost or early, its work done exactly once, gangs whole and in their VC, no GPU given twice."""
    trace, log, nodes = table.trace, table.log, table.spec.expand()
    assert log is not None
    ran = ~table.rejected
    np.testing.assert_array_equal(np.isfinite(table.end_s), ran)
    assert (table.start_s[ran] >= trace.submit_s[ran]).all()
    useful_s = np.bincount(log.job, log.useful_s, minlength=len(trace))
    np.testing.assert_allclose(useful_s[ran], trace.duration_s[ran], rtol=1e-9)
    pinned = trace.extra.get("preemptible", np.full(len(trace), "")) == "false"
    spans: dict[int, list[tuple[float, float]]] = {}
    last_end_s = trace.submit_s.copy()
    for k, row in enumerate(log.job.tolist()):
        gpus, start_s, end_s = log.gpus(k), log.start_s[k], log.end_s[k]
        assert len(set(gpus)) == len(gpus) == trace.num_gpus[row]
        owners = {nodes[table.gpu_node[g]].vc for g in gpus}
        assert len(owners) == 1
        assert owners <= {None, str(trace.vc[row]) or None}
        assert last_end_s[row] <= start_s <= end_s
        last_end_s[row] = end_s
        assert not (pinned[row] and REASONS[log.reason[k]] == "preempted")
        if log.reason[k] != ENDED:
            assert end_s > start_s or REASONS[log.reason[k]] == "node_failure"
        for g in gpus:
            spans.setdefault(g, []).append((start_s, end_s))
    for taken in spans.values():
        taken.sort()
        for (_, end_s), (start_s, _) in pairwise(taken):
            assert end_s <= start_s


@settings(max_examples=80, deadline=None)
@given(cases(one_pool=True), st.sampled_from(sorted(POLICIES)))
def test_events_and_due_ticks_are_enough(case: Case, name: str) -> None:
    """Walking at every second, or at every tick, comes to the same attempts."""
    policy = POLICIES[name]
    table = case.engine(policy).run_rule(policy.rule)
    assert attempts_of(table) == second_by_second(case, policy)
    check_valid(table)


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(sorted(POLICIES)))
def test_compiled_equals_interface(case: Case, name: str) -> None:
    """With virtual clusters, jobs that must not be preempted, and nodes that fail and drain."""
    policy = POLICIES[name]
    table = case.engine(policy).run_rule(policy.rule)
    check_valid(table)
    check_equal(table, case.engine(policy).run(RuleScheduler(policy)))


@pytest.mark.parametrize("like", quick(["helios", "philly"], "helios".__eq__))
@pytest.mark.parametrize("name", quick(["srtf", "tiresias"], "tiresias".__eq__))
def test_compiled_equals_interface_on_synthetic_traces(name: str, like: str) -> None:
    scheduler, records = RuleScheduler(Policy(name)), list[DecisionRecord]()
    trace, spec = synthesize(like, jobs=300, load=1.1, gpus=32, seed=7)
    compiled, stepped = (Engine(trace, spec, order=scheduler.order, oracle=True) for _ in range(2))
    table = compiled.run_rule(scheduler.rule)
    other = stepped.run(scheduler, on_record=records.append if like == "helios" else None)
    check_valid(table)
    check_equal(table, other)
    assert table.log is not None
    preemptions = len(table.log) - int((~table.rejected).sum())
    assert preemptions > 20, "a trace on which the rule preempts"
    assert table.decisions == len(table.log) + preemptions
    assert other.by_source == {"rule": other.decisions}
    assert other.decisions >= table.decisions
    if records:
        kinds = [type(record.action) for record in records]
        assert kinds.count(Preempt) == preemptions
        assert kinds.count(Start) == len(table.log)
        for record in records:
            assert sum(plan.chosen for plan in record.plans) == isinstance(record.action, Start)


def test_a_run_that_stops_early_has_the_same_first_jobs() -> None:
    trace, spec = synthesize("philly", jobs=900, load=0.9, gpus=32, seed=3)
    first, rule = np.arange(len(trace)) < 200, Policy("tiresias").rule
    whole, part = (
        Engine(trace, spec, order=rule.order, oracle=True).run_rule(rule, until_started=until)
        for until in (None, first)
    )
    np.testing.assert_array_equal(part.end_s[first], whole.end_s[first])
    assert np.isnan(part.start_s[~first]).any()
    assert math.isfinite(whole.end_s[~whole.rejected].sum())
