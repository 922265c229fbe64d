"""Rules that move running jobs: compiled, by the `Scheduler` interface, and as a network follows them."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.decide.actions import Action, Preempt, Start
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.decide.settings import Migrate
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.metrics import migrations
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from tests.support.sim.gittins_cases import SHORT, crowd_both_ways, with_preemptible
from tests.support.sim.preemptive_cases import COSTS, Case, cases, check_equal, check_valid

EAGER = {"dwell": "2s", "gain": 0.0, "first": True}
POLICIES = {
    "eager": Policy(preempt=SHORT, migrate=EAGER),
    "last": Policy(preempt=SHORT, migrate={**EAGER, "first": False}),
    "gittins": Policy("gittins", migrate=EAGER),
}
MOVING = Policy("gittins", migrate={})
NETWORK = PpoScheduler(
    initial_weights(NetworkConfig(), 0),
    NetworkConfig(),
    permissions=Permissions(preemption=True),
    migrate=Migrate(),
)

pytestmark = pytest.mark.slow


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
@given(cases(), st.sampled_from(sorted(POLICIES)), st.integers(0, 9))
def test_compiled_equals_interface(case: Case, name: str, seed: int) -> None:
    """With virtual clusters, jobs that must not be preempted, and nodes that fail and drain."""
    scheduler, rng = RuleScheduler(POLICIES[name]), np.random.default_rng(seed)
    jobs = len(case.trace)
    predictions = PredictedTimes(case.trace.duration_s * rng.lognormal(0, 1, jobs), rng.uniform(0, 2, jobs))
    rules = RunRules(costs=COSTS, node_events=case.events)
    one, two = (
        Engine(case.trace, case.spec, order=scheduler.order, predictions=predictions, rules=rules)
        for _ in range(2)
    )
    table, records = one.run_rule(scheduler.rule), list[DecisionRecord]()
    check_valid(table)
    check_equal(table, two.run(scheduler, on_record=records.append))
    check_kept(records)


def played(
    policy: Policy | Scheduler, like: str, frac: float, *, compiled: bool
) -> tuple[JobTable, list[DecisionRecord]]:
    trace, spec = synthesize(like, jobs=400, load=1.0, gpus=32, seed=7)
    scheduler = policy if isinstance(policy, Scheduler) else load_scheduler(policy)
    records = list[DecisionRecord]()
    engine = Engine(with_preemptible(trace, frac), spec, order=scheduler.order)
    if not compiled:
        return engine.run(scheduler, on_record=records.append), records
    assert scheduler.rule is not None
    return engine.run_rule(scheduler.rule), records


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("frac", [0.0, 0.5, 1.0])
def test_the_same_three_ways(like: str, frac: float) -> None:
    table, _ = played(MOVING, like, frac, compiled=True)
    stepped, records = played(MOVING, like, frac, compiled=False)
    network, others = played(NETWORK, like, frac, compiled=False)
    check_valid(table)
    check_equal(table, stepped)
    check_equal(table, network)
    moves = check_kept(records)
    assert check_kept(others) == moves
    assert (moves > 0) == (frac > 0)
    assert migrations(table, np.ones(len(table.trace), np.bool_)) >= moves
    plain, _ = played(Policy("gittins"), like, frac, compiled=True)
    assert (table.end_s == plain.end_s).all() == (frac == 0)


def test_under_models_too() -> None:
    """Sharing, cores, two partitions, failures; work and energy are accounted for."""
    moves = 0
    migrate = {"dwell": "1m", "gain": 0.0, "first": True}
    one = RuleScheduler(Policy("gittins", share={"min_speed": 0.5}, migrate=migrate))
    for seed in range(6):
        moves += check_kept(crowd_both_ways(one, seed)[1])
    assert moves > 0


def test_the_trained_network_moves_jobs_and_the_guard_lets_it() -> None:
    from rlsched.broker.server.broker_policy import load_policy

    policy, fallback = load_policy(Policy("ppo", migrate={}), None, 10_000.0)
    assert fallback == "reference"
    trace, spec = synthesize("philly", jobs=200, load=1.1, gpus=32, seed=9)
    records: list[DecisionRecord] = []
    spec = msgspec.structs.replace(spec, preemptible="all")
    table = Engine(trace, spec, order=policy.order).run(policy, on_record=records.append)
    assert np.isfinite(table.end_s).all()
    assert check_kept(records) > 0
    assert {record.source for record in records} <= {"policy", "automatic"}
