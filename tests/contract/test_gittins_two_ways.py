"""`gittins` compiled and through the `Scheduler` interface, with and without models."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from tests.quick import quick
from tests.support.sim.gittins_cases import SHORT, crowd_both_ways, preempted, with_preemptible
from tests.support.sim.preemptive_cases import COSTS, Case, cases, check_equal, check_valid


def without_preemption(policy: Policy) -> RuleScheduler:
    """Its rule by the same index, but without preemption."""
    made = RuleScheduler(policy)
    made.rule = replace(made.rule, options=made.rule.options._replace(preempts=False))
    made.abilities = msgspec.structs.replace(made.abilities, preempts=False)
    return made


SCHEDULERS = {
    "gittins": RuleScheduler(Policy("gittins")),
    "short": RuleScheduler(Policy(preempt=SHORT)),
    "sure": RuleScheduler(Policy(preempt={**SHORT, "spread": 0.0, "margin": 0.0})),
    "no preemption": without_preemption(Policy(preempt=SHORT)),
}
SHARING: Final[dict[str, dict[str, Any]]] = {
    "share": {"share": {"min_speed": 0.5}},
    "share and slowdown": {"share": {}, "clock": {"rule": "slowdown", "slowdown": 0.05}},
    "three jobs and cores": {"share": {"min_speed": 0.4, "max_jobs": 3}, "cores": True},
    "share and weight": {
        "share": {"min_speed": 0.5},
        "clock": {"rule": "weighed", "energy_weight": 0.5},
    },
}


@settings(max_examples=80, deadline=None)
@given(cases(), st.sampled_from(sorted(SCHEDULERS)), st.integers(0, 9))
def test_compiled_equals_interface(case: Case, name: str, seed: int) -> None:
    """With virtual clusters, jobs that must not be preempted, and nodes that fail and drain."""
    scheduler, rng = SCHEDULERS[name], np.random.default_rng(seed)
    jobs = len(case.trace)
    predictions = PredictedTimes(case.trace.duration_s * rng.lognormal(0, 1, jobs), rng.uniform(0, 2, jobs))
    rules = RunRules(costs=COSTS, node_events=case.events, always=True)
    one, two = (
        Engine(case.trace, case.spec, order=scheduler.order, predictions=predictions, rules=rules)
        for _ in range(2)
    )
    table = one.run_rule(scheduler.rule)
    check_valid(table)
    check_equal(table, two.run(scheduler))
    assert scheduler.abilities.preempts or preempted(table) == 0


@pytest.mark.parametrize("like", quick(["helios", "philly"], "philly".__eq__))
@pytest.mark.parametrize("frac", quick([0.0, 0.5, 1.0], lambda frac: frac == 0.5, soak=(0.0,)))
def test_compiled_equals_interface_on_synthetic_traces(like: str, frac: float) -> None:
    trace, spec = synthesize(like, jobs=300, load=1.1, gpus=32, seed=7)
    trace, scheduler = with_preemptible(trace, frac), SCHEDULERS["gittins"]
    compiled, stepped = (Engine(trace, spec, order=scheduler.order) for _ in range(2))
    records: list[DecisionRecord] = []
    table = compiled.run_rule(scheduler.rule)
    other = stepped.run(scheduler, on_record=records.append if like == "helios" else None)
    check_valid(table)
    check_equal(table, other)
    preemptions = preempted(table)
    assert (preemptions > 10) == (frac > 0)
    assert table.decisions == len(table.log or ()) + preemptions
    assert other.by_source == {"rule": other.decisions}
    if records:
        kinds = [type(record.action) for record in records]
        assert kinds.count(Preempt) == preemptions
        assert kinds.count(Start) == len(table.log or ())
        for record in records:
            taken = [(plan.how, plan.share_with) for plan in record.plans if plan.chosen]
            if isinstance(record.action, Preempt):
                assert taken == [("preempt", record.action.seq)], "for a job that has its turn"
            else:
                assert len(taken) == isinstance(record.action, Start)


def test_with_no_job_to_preempt_it_equals_the_rule_without_preemption() -> None:
    trace, spec = synthesize("helios", jobs=300, load=1.1, gpus=32, seed=7)
    trace, gittins = with_preemptible(trace, 0.0), Policy("gittins")
    tables = [
        Engine(trace, spec, order=one.order, rules=RunRules(always=True)).run_rule(one)
        for one in (gittins.rule, without_preemption(gittins).rule)
    ]
    check_equal(*tables)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARING)
def test_compiled_equals_interface_under_models(name: str) -> None:
    """Two partitions, failures, and jobs that must not be preempted."""
    seen: dict[str, int] = defaultdict(int)
    one = RuleScheduler(Policy("gittins", preempt={"margin": 0.2}, **SHARING[name]))
    for seed in range(8):
        table, _ = crowd_both_ways(one, seed)
        assert table.log is not None
        assert table.log.books is not None
        seen["preempted"] += preempted(table)
        lasted_s = table.log.end_s - table.log.start_s
        seen["shared"] += int((table.log.books.share_s < 0.9 * lasted_s).sum())
    assert seen["preempted"] > 20
    assert seen["shared"] > 20


def test_run_that_stops_early_has_the_same_first_jobs() -> None:
    trace, spec = synthesize("philly", jobs=900, load=0.9, gpus=32, seed=3)
    first, rule = np.arange(len(trace)) < 200, Policy("gittins").rule
    whole, part = (
        Engine(trace, spec, order=rule.order).run_rule(rule, until_started=until) for until in (None, first)
    )
    np.testing.assert_array_equal(part.end_s[first], whole.end_s[first])
    assert np.isnan(part.start_s[~first]).any()
