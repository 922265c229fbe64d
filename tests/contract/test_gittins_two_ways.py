"""`gittins` compiled and through the `Scheduler` interface, with and without models."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.order.gittins import Gittins
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.abilities import read_abilities
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.index_walk import IndexRule
from rlsched.decide.record import DecisionRecord
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.heuristics.gittins import ByIndex, gittins, make_gittins
from rlsched_envs.engine import Engine, Predictions
from rlsched_envs.job_table import JobTable
from rlsched_envs.attempt_arrays import PREEMPTED
from rlsched_envs.attempt_log import RunRules, PreemptionCosts
from rlsched_envs.modelling import Models
from tests.contract.test_abilities_two_ways import check_books
from tests.contract.test_abilities_two_ways import check_equal as check_equal_modelled
from tests.contract.test_preemptive_two_ways import COSTS, Case, cases, check_equal, check_valid

SHORT = Gittins(spread=1.0, trust=0.5, margin=0.2, first_age_s=4.0, tick_s=3.0)
"""For jobs of seconds."""
SURE = msgspec.structs.replace(SHORT, spread=0.0, margin=0.0)
RULES = {
    "gittins": gittins(),
    "short": IndexRule(name="short", order="submit", index=SHORT),
    "sure": IndexRule(
        name="sure", order="submit", index=msgspec.structs.replace(SHORT, spread=0.0, margin=0.0)
    ),
    "starts alone": IndexRule(name="starts alone", order="submit", index=SHORT, preempts=False),
}
ABLE = (
    "gittins+share=0.5",
    "gittins+share+slowdown=0.05",
    "gittins+share=0.4+tenants=3+cores",
    "gittins+share=0.5+weight=0.5+reclock=10s",
)


def able(name: str, rule: IndexRule) -> ByIndex:
    return ByIndex(rule).with_abilities(name, read_abilities(name, name.split("+")[1:]))


def preempted(table: JobTable) -> int:
    assert table.segments is not None
    return int((table.segments.reason == PREEMPTED).sum())


def with_preemptible(trace: Trace, frac: float) -> Trace:
    may = np.random.default_rng(0).random(len(trace)) < frac
    return replace(trace, extra=trace.extra | {"preemptible": np.where(may, "true", "false")})


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(sorted(RULES)), st.integers(0, 9))
def test_compiled_equals_interface(case: Case, name: str, seed: int) -> None:
    """With virtual clusters, jobs that must not be preempted, and nodes that fail and drain."""
    rule, rng = RULES[name], np.random.default_rng(seed)
    jobs = len(case.trace)
    stamps = Predictions(case.trace.duration_s * rng.lognormal(0, 1, jobs), rng.uniform(0, 2, jobs))
    rules = RunRules(costs=COSTS, node_events=case.events)
    one, two = (
        Engine(case.trace, case.spec, order=rule.order, predictions=stamps, rules=rules) for _ in range(2)
    )
    table = one.run_rule(rule)
    check_valid(table)
    if rule.preempts:
        check_equal(table, two.run(ByIndex(rule)))
    else:
        assert preempted(table) == 0
        other = two.run(ByIndex(rule))
        np.testing.assert_array_equal(table.start_s, other.start_s)
        np.testing.assert_array_equal(table.end_s, other.end_s)


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("frac", [0.0, 0.5, 1.0])
def test_compiled_equals_interface_on_synthetic_traces(like: str, frac: float) -> None:
    trace, spec = synthesize(like, jobs=300, load=1.1, gpus=32, seed=7)
    trace, rule = with_preemptible(trace, frac), gittins()
    compiled, stepped = (Engine(trace, spec, order=rule.order) for _ in range(2))
    records: list[DecisionRecord] = []
    table = compiled.run_rule(rule)
    other = stepped.run(make_gittins("", 0), on_record=records.append if like == "helios" else None)
    check_valid(table)
    check_equal(table, other)
    preemptions = preempted(table)
    assert (preemptions > 10) == (frac > 0)
    assert table.decisions == len(table.segments or ()) + preemptions
    assert other.by_source == {"rule": other.decisions}
    if records:
        kinds = [type(record.action) for record in records]
        assert kinds.count(Preempt) == preemptions
        assert kinds.count(Start) == len(table.segments or ())
        rows = [record.halves[0].choice for record in records if isinstance(record.action, Wait)]
        assert set(rows) == {0}


def test_with_no_job_to_preempt_it_starts_jobs_as_one_that_does_not_preempt() -> None:
    trace, spec = synthesize("helios", jobs=300, load=1.1, gpus=32, seed=7)
    trace, rule = with_preemptible(trace, 0.0), gittins()
    tables = [
        Engine(trace, spec, order=one.order).run_rule(one)
        for one in (rule, msgspec.structs.replace(rule, preempts=False))
    ]
    check_equal(*tables)


def crowd(seed: int, jobs: int = 60) -> tuple[Trace, ClusterSpec, Predictions]:
    """Gangs, failures and owners on two partitions of V100; half of the jobs may be preempted."""
    rng = np.random.default_rng(seed)
    trace = Trace.from_columns(
        name="crowd",
        submit_s=np.sort(rng.integers(0, 3000, jobs)).astype(float),
        duration_s=np.ceil(rng.lognormal(5, 1.5, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2, 4, 8], jobs).astype(float),
        vc=rng.choice(["", "a"], jobs),
        extra={
            "preemptible": rng.choice(["true", "true", "false"], jobs),
            "fail_after_s": rng.choice(["", "", "", "40"], jobs),
        },
    )
    spec = ClusterSpec(
        name="two",
        nodes=(
            NodeGroup(count=2, gpus=4, gpu_type="V100", cpus=24, vc="a"),
            NodeGroup(count=2, gpus=4, gpu_type="V100", cpus=24),
        ),
    )
    return trace, spec, Predictions(trace.duration_s * rng.lognormal(0, 1, jobs), np.ones(jobs))


@pytest.mark.parametrize("name", ABLE)
def test_compiled_equals_interface_under_models(name: str) -> None:
    """Two partitions, failures, and jobs that must not be preempted."""
    seen: dict[str, int] = defaultdict(int)
    for seed in range(8):
        one = able(name, gittins(Gittins(margin=0.2)))
        trace, spec, stamps = crowd(seed)
        compiled, stepped = (
            Engine(
                trace,
                spec,
                order=one.order,
                predictions=stamps,
                models=Models(seed=seed),
                rules=RunRules(costs=PreemptionCosts(restart_s=20.0)),
            )
            for _ in range(2)
        )
        table = compiled.run_rule(one.rule)
        check_equal_modelled(table, stepped.run(one))
        check_books(table)
        assert table.segments is not None
        assert table.segments.books is not None
        seen["preempted"] += preempted(table)
        lasted_s = table.segments.end_s - table.segments.start_s
        seen["shared"] += int((table.segments.books.share_s < 0.9 * lasted_s).sum())
    assert seen["preempted"] > 20
    assert seen["shared"] > 20


def test_a_run_that_stops_early_has_the_same_first_jobs() -> None:
    trace, spec = synthesize("philly", jobs=900, load=0.9, gpus=32, seed=3)
    first, rule = np.arange(len(trace)) < 200, gittins()
    whole, part = (
        Engine(trace, spec, order=rule.order).run_rule(rule, until_started=until) for until in (None, first)
    )
    np.testing.assert_array_equal(part.end_s[first], whole.end_s[first])
    assert np.isnan(part.start_s[~first]).any()
