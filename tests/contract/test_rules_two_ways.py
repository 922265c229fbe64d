"""Every rule three times: compiled, through the `Scheduler` interface, and as forty lines of plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import predict_trace
from tests.quick import quick
from tests.support.sim.rule_cases import Case, cases, check_equal, check_valid, place, synthetic

POLICIES = {
    name: Policy(name) for name in ("fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill")
}


def naive(case: Case, policy: Policy) -> tuple[list[float], list[float], list[tuple[int, ...]]]:
    """Starts, ends and GPUs of the runnable jobs, by the rules of the fidelity README."""
    trace, nodes = case.trace, case.spec.expand()
    first = np.cumsum([0] + [node.gpus for node in nodes]).tolist()
    free = {n: list(range(first[n], first[n + 1])) for n in range(len(nodes))}
    owners = [*sorted({node.vc for node in nodes if node.vc is not None}), None]
    rejected = case.run_rule(policy).rejected
    predicted = trace.duration_s if policy.oracle else case.predictions.predicted_s
    key = {
        None: trace.submit_s,
        "predicted": predicted,
        "area": predicted * trace.num_gpus,
    }[policy.settings.order]
    starts, ends = [math.nan] * len(trace), [math.nan] * len(trace)
    given_gpus: list[tuple[int, ...]] = [()] * len(trace)
    todo = [row for row in range(len(trace)) if not rejected[row]]
    waiting: list[int] = []
    running: list[int] = []

    while todo or running:
        now = min([ends[row] for row in running] + [trace.submit_s[row] for row in todo[:1]])
        for row in [row for row in running if ends[row] == now]:
            running.remove(row)
            for g in given_gpus[row]:
                n = int(np.searchsorted(first, g, side="right")) - 1
                free[n] = sorted([*free[n], g])
        while todo and trace.submit_s[todo[0]] == now:
            waiting.append(todo.pop(0))
        waiting.sort(key=lambda row: (key[row], row))
        for owner in owners:
            members = [n for n, node in enumerate(nodes) if node.vc == owner]
            for row in [row for row in waiting if owner is None or trace.vc[row] == owner] if members else []:
                where = place(nodes, free, members, int(trace.num_gpus[row]))
                if where:
                    starts[row], ends[row], given_gpus[row] = now, now + trace.duration_s[row], tuple(where)
                    waiting.remove(row)
                    running.append(row)
                    for n in members:
                        free[n] = [g for g in free[n] if g not in where]
                elif policy.settings.blocks:
                    break
    return starts, ends, given_gpus


@pytest.mark.parametrize("like", quick(["helios", "philly", "itp"], "helios".__eq__))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_compiled_equals_interface_on_synthetic_traces(name: str, like: str) -> None:
    case, policy = synthetic(like, seed=7), POLICIES[name]
    compiled = case.run_rule(policy)
    scheduler = RuleScheduler(policy)
    records: list[DecisionRecord] | None = [] if name == "qssf-backfill" else None
    stepped = case.engine(scheduler).run(scheduler, on_record=None if records is None else records.append)
    check_equal(compiled, stepped)
    check_valid(compiled)
    assert (compiled.start_s > compiled.trace.submit_s).mean() > 0.1, "a trace with contention"
    starts = int((~compiled.rejected).sum())
    assert compiled.decisions == starts
    assert stepped.decisions >= starts
    assert stepped.decision_us.shape == (stepped.decisions,)
    assert stepped.by_source == {"rule": stepped.decisions}
    if records is not None:
        assert [record.number for record in records] == list(range(stepped.decisions))
        taken = [[plan.how for plan in record.plans if plan.chosen] for record in records]
        assert taken == [["free"]] * len(records)
        assert [record.turn for record in records] == [record.action.seq for record in records]


@pytest.mark.parametrize("name", ["fifo", "qssf-backfill"])
def test_run_that_stops_early_has_the_same_first_jobs_both_ways(name: str) -> None:
    """The first 300 of 1,500 jobs: starts, ends and GPUs as in the whole run, after far fewer decisions."""
    trace, spec = synthesize("philly", jobs=1500, load=0.9, gpus=32, seed=3)
    case, policy = Case(trace, spec, predict_trace(trace, spec)), POLICIES[name]
    first = np.arange(len(trace)) < 300
    whole = case.run_rule(policy)
    compiled = case.run_rule(policy, until_started=first)
    stepped = case.engine(policy).run(RuleScheduler(policy), until_started=first)
    check_equal(compiled, stepped)
    for table in (compiled, stepped):
        np.testing.assert_array_equal(table.start_s[first], whole.start_s[first])
        np.testing.assert_array_equal(table.end_s[first], whole.end_s[first])
        assert table.gpus[:300] == whole.gpus[:300]
        started = ~np.isnan(table.start_s)
        assert 300 - table.rejected.sum() <= started.sum() < len(trace) / 2 + 256
        np.testing.assert_array_equal(np.isnan(table.end_s), ~started)
        np.testing.assert_array_equal(table.start_s[started], whole.start_s[started])
    never = np.zeros(len(trace), np.bool_)
    assert np.isnan(case.run_rule(policy, until_started=never).start_s[300:]).all()


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(sorted(POLICIES)))
def test_compiled_equals_interface_equals_plain_python(case: Case, name: str) -> None:
    policy = POLICIES[name]
    compiled = case.run_rule(policy)
    check_equal(compiled, case.engine(policy).run(RuleScheduler(policy)))
    check_valid(compiled)
    starts, ends, gpus = naive(case, policy)
    np.testing.assert_array_equal(compiled.start_s, starts)
    np.testing.assert_array_equal(compiled.end_s, ends)
    assert compiled.gpus == gpus


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 3))
def test_random_choices_are_valid_too(case: Case, seed: int) -> None:
    scheduler = load_scheduler("random", seed=seed)
    table = case.engine(scheduler).run(scheduler)
    check_valid(table)
    check_equal(table, case.engine(scheduler).run(load_scheduler("random", seed=seed)))


@pytest.mark.slow
def test_random_on_a_synthetic_trace_starts_everything_in_the_end() -> None:
    case = synthetic("helios", seed=3)
    scheduler = load_scheduler("random", seed=1)
    table = case.engine(scheduler).run(scheduler)
    check_valid(table)
    other = load_scheduler("random", seed=2)
    assert (case.engine(other).run(other).start_s != table.start_s).any(), "another seed, another schedule"


def test_blocking_costs_and_order_matters() -> None:
    """Rules differ on a trace with contention: no two give the same schedule."""
    case = synthetic("helios", seed=11)
    starts = {case.run_rule(policy).start_s.tobytes() for policy in POLICIES.values()}
    assert len(starts) == len(POLICIES)


@settings(max_examples=40, deadline=None)
@given(cases(alike=True))
def test_queue_blocks_in_order(case: Case) -> None:
    """Blocking FIFO starts the jobs of a partition in the order of their rows."""
    table = case.run_rule(POLICIES["fifo"])
    started = table.start_s[~table.rejected]
    assert (np.diff(started) >= 0).all()
