"""Rules that move running jobs: compiled, by the `Scheduler` interface, and as a network follows them."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.actions import Action, Preempt, Start
from rlsched.decide.index_walk import IndexRule
from rlsched.decide.record import DecisionRecord
from rlsched.decide.repack import Repack
from rlsched.decide.scheduler import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.metrics import migrations
from rlsched_agents.heuristics.gittins import ByIndex, gittins
from rlsched_envs.engine import Engine, Predictions
from rlsched_envs.job_table import JobTable
from rlsched_envs.attempt_log import RunRules, PreemptionCosts
from rlsched_envs.modelling import Models
from tests.contract.test_abilities_two_ways import check_books
from tests.contract.test_abilities_two_ways import check_equal as check_equal_modelled
from tests.contract.test_gittins_two_ways import SHORT, crowd, with_preemptible
from tests.contract.test_preemptive_two_ways import COSTS, Case, cases, check_equal, check_valid

EAGER = Repack(dwell_s=2.0, gain=0.0, first=True)
RULES = {
    "eager": IndexRule(name="eager", order="submit", index=SHORT, repack=EAGER),
    "last": IndexRule(
        name="last", order="submit", index=SHORT, repack=msgspec.structs.replace(EAGER, first=False)
    ),
    "gittins": msgspec.structs.replace(gittins(), repack=EAGER),
}


def check_kept(records: list[DecisionRecord]) -> int:
    """A move's promise is kept at its very instant: the gang starts, then all who moved. Returns moves."""
    at: dict[float, list[Action]] = defaultdict(list)
    for record in records:
        at[record.now_s].append(record.action)
    moves = 0
    for actions in at.values():
        for k, action in enumerate(actions):
            if not isinstance(action, Preempt) or action.moved_for < 0:
                continue
            moves += 1
            before = actions[k - 1] if k > 0 else None
            if isinstance(before, Preempt) and before.moved_for == action.moved_for:
                continue  # looked at with the first of them
            rest = actions[k:]
            movers = [a.seq for a in rest if isinstance(a, Preempt) and a.moved_for == action.moved_for]
            after = rest[len(movers) : 2 * len(movers) + 1]
            assert [a.seq for a in after[:1] if isinstance(a, Start)] == [action.moved_for]
            assert sorted(a.seq for a in after[1:] if isinstance(a, Start)) == sorted(movers)
    return moves


@settings(max_examples=60, deadline=None)
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
    table, records = one.run_rule(rule), []
    check_valid(table)
    check_equal(table, two.run(ByIndex(rule), on_record=records.append))
    check_kept(records)


def played(name: str, like: str, frac: float, *, compiled: bool) -> tuple[JobTable, list[DecisionRecord]]:
    trace, spec = synthesize(like, jobs=400, load=1.0, gpus=32, seed=7)
    trace, records = with_preemptible(trace, frac), []
    engine, scheduler = Engine(trace, spec, order="index"), load_scheduler(name)
    if not compiled:
        return engine.run(scheduler, on_record=records.append), records
    assert isinstance(scheduler, ByIndex)
    return engine.run_rule(scheduler.rule), records


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("frac", [0.0, 0.5, 1.0])
def test_the_same_three_ways(like: str, frac: float) -> None:
    table, _ = played("gittins+repack", like, frac, compiled=True)
    stepped, records = played("gittins+repack", like, frac, compiled=False)
    network, others = played("ppo:untrained+preempt+repack", like, frac, compiled=False)
    check_valid(table)
    check_equal(table, stepped)
    check_equal(table, network)
    moves = check_kept(records)
    assert check_kept(others) == moves
    assert (moves > 0) == (frac > 0)
    assert migrations(table, np.ones(len(table.trace), np.bool_)) >= moves
    plain, _ = played("gittins", like, frac, compiled=True)
    assert (table.end_s == plain.end_s).all() == (frac == 0)


def test_under_models_too() -> None:
    """Sharing, cores, two partitions, failures; work and energy are accounted for."""
    moves = 0
    for seed in range(6):
        trace, spec, stamps = crowd(seed)
        one = load_scheduler("gittins+share=0.5+repack")
        assert isinstance(one, ByIndex)
        one = one.with_repack(one.name, Repack(dwell_s=60.0, gain=0.0, first=True))
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
        records: list[DecisionRecord] = []
        table = compiled.run_rule(one.rule)
        check_equal_modelled(table, stepped.run(one, on_record=records.append))
        check_books(table)
        moves += check_kept(records)
    assert moves > 0


def test_the_trained_network_moves_jobs_and_the_guard_lets_it() -> None:
    from rlsched.broker.policy import load_policy

    policy, fallback = load_policy("ppo+preempt+repack", None, 10_000.0)
    assert fallback == "gittins+repack"
    trace, spec = synthesize("philly", jobs=200, load=1.1, gpus=32, seed=9)
    records: list[DecisionRecord] = []
    table = Engine(trace, spec, order="index").run(policy, on_record=records.append)
    assert np.isfinite(table.end_s).all()
    assert check_kept(records) > 0
    assert {record.source for record in records} <= {"policy", "automatic"}
