"""Rules that preempt: compiled, through the `Scheduler` interface, and second by second in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine
from tests.quick import quick
from tests.support.sim.preemptive_cases import Case, attempts_of, cases, check_equal, check_valid

LAS = Policy("tiresias", name="las", preempt={"threshold_gpu_s": 15.0, "tick": "4s"})
POLICIES = {"srtf": Policy("srtf"), "las": LAS}


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
    """(start, end) of every attempt of every job: one pool, and a decision at every second that is a tick."""
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


@settings(max_examples=80, deadline=None)
@given(cases(one_pool=True), st.sampled_from(sorted(POLICIES)))
def test_events_and_due_ticks_suffice(case: Case, name: str) -> None:
    """Deciding at every second, or at every tick, gives the same attempts."""
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


def test_run_that_stops_early_has_the_same_first_jobs() -> None:
    trace, spec = synthesize("philly", jobs=900, load=0.9, gpus=32, seed=3)
    first, rule = np.arange(len(trace)) < 200, Policy("tiresias").rule
    whole, part = (
        Engine(trace, spec, order=rule.order, oracle=True).run_rule(rule, until_started=until)
        for until in (None, first)
    )
    np.testing.assert_array_equal(part.end_s[first], whole.end_s[first])
    assert np.isnan(part.start_s[~first]).any()
    assert math.isfinite(whole.end_s[~whole.rejected].sum())
