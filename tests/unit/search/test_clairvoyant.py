"""`clairvoyant`: it uses true future arrivals, finds a known optimum, and is refused where it cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.steps import RULES as STEPS
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_agents.heuristics.clairvoyant import Clairvoyant
from rlsched_agents.search.columns import RULES, SKIPPING
from rlsched_agents.search.truth import Truth
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.lookahead import KEEP_FREE, NOTHING, FollowedRule, LookAhead, followers

ONE_NODE = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4),))


def trace_of(*jobs: tuple[float, float, int]) -> Trace:
    """Jobs as (submission, duration, GPUs)."""
    submit, duration, gpus = zip(*jobs, strict=True)
    return Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus)


def known(trace: Trace, spec: ClusterSpec) -> Engine:
    return Engine(trace, spec, order=Order(by="area"), oracle=True)


def run(trace: Trace, spec: ClusterSpec, by: Clairvoyant | Policy) -> JobTable:
    engine = known(trace, spec)
    return engine.run_rule(by.rule) if isinstance(by, Policy) else engine.run(by)


def queueing(table: JobTable) -> float:
    return float(np.sum(table.start_s - table.trace.submit_s))


def least_queueing(trace: Trace, gpus: int) -> float:
    """The optimum of a few jobs on one node: the best list schedule of all orders.

    Jobs are placed in the order of the list, each as early as it fits after its submission, next to the jobs
    before it. For a regular measure like this one some order gives an optimum.
    """
    best = np.inf
    jobs = list(zip(trace.submit_s, trace.duration_s, trace.num_gpus, strict=True))
    for order in itertools.permutations(jobs):
        placed: list[tuple[float, float, int]] = []
        total = 0.0
        for submit_s, duration_s, wanted in order:
            starts = sorted({submit_s, *(end for _, end, _ in placed if end > submit_s)})
            for start in starts:
                edges = [start, *(begin for begin, _, _ in placed if start < begin < start + duration_s)]
                if all(
                    sum(g for begin, end, g in placed if begin <= at < end) + wanted <= gpus for at in edges
                ):
                    break
            placed.append((start, start + duration_s, int(wanted)))
            total += start - submit_s
        best = min(best, total)
    return best


TOYS = {
    "a later job": trace_of((0, 300, 3), (20, 36_000, 1), (100, 600, 4)),
    "a gang worth waiting for": trace_of((0, 300, 3), (10, 600, 4), (20, 36_000, 1)),
    "short jobs that pass in time": trace_of((0, 3000, 3), (10, 3000, 4), (20, 60, 1), (30, 2500, 1)),
    "a short job behind a long one": trace_of((0, 100, 4), (20, 2000, 1), (30, 700, 4)),
}


@pytest.mark.parametrize("name", list(TOYS)[1:])
def test_it_has_the_optimum_of_a_toy(name: str) -> None:
    found = queueing(run(TOYS[name], ONE_NODE, Clairvoyant()))
    assert found == pytest.approx(least_queueing(TOYS[name], 4))


def test_reference_does_not_have_the_optimum_of_the_toys() -> None:
    plain = Policy("qssf-backfill")
    worse = [queueing(run(toy, ONE_NODE, plain)) > least_queueing(toy, 4) for toy in TOYS.values()]
    assert worse == [True, True, False, True]


def test_uncontested_jobs_start_at_once() -> None:
    """As for every policy: it is called where not all waiting jobs fit."""
    table = run(TOYS["a later job"], ONE_NODE, Clairvoyant())
    assert table.start_s.tolist() == [0, 20, 36_020]


@pytest.mark.slow
def test_longer_future_is_never_worse_than_its_reference() -> None:
    """With all arrivals in the future, no decision makes the run longer than the reference's (sequential
    improvement: Bertsekas, Tsitsiklis and Wu, 1997), and the best of the rules is reached from the start."""
    for seed in (3, 4, 5):
        trace, spec = synthesize(
            "helios", jobs=150, load=1.1, gpus=16, seed=seed, predictability="informative"
        )
        found = queueing(run(trace, spec, Clairvoyant()))
        assert found <= queueing(run(trace, spec, Policy("qssf-backfill"))) * (1 + 1e-9)
        assert found < 0.97 * queueing(run(trace, spec, Policy("qssf-backfill")))


RESERVE = Policy("reserve", leave_free={"longer_than": "10m", "share": 0.25})


@pytest.mark.parametrize(
    ("policy", "follower"),
    [
        (Policy("qssf-backfill"), SKIPPING),
        (Policy("qssf"), FollowedRule(blocks=True)),
        (RESERVE, FollowedRule(KEEP_FREE, long_job_s=600.0, leave_frac=0.25)),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_rule_that_follows_runs_as_in_the_engine(policy: Policy, follower: FollowedRule) -> None:
    """Two ways: played on in a copy in the true future, and replayed by the engine."""
    trace, spec = synthesize("helios", jobs=120, load=1.2, gpus=16, seed=8, predictability="informative")
    whole = run(trace, spec, policy)
    engine = known(trace, spec)
    truth = Truth(engine, len(trace))
    engine.state.sort_queue(wanted=True)
    while engine.arrays.progress.run[0].next_row < 60:
        assert engine.advance()
        decide(engine, policy)
    now_s, came = engine.now_s, engine.arrays.progress.run[0].next_row
    copies = LookAhead(1000)
    later = len(truth.coming(0))
    assert later == len(trace) - came
    copies.take(engine.state, 0, later, now_s)
    assert len(copies.slots) > 3
    cost = copies.costs(
        0,
        np.array([NOTHING], np.int32),
        np.empty(0, np.int32),
        -1,
        truth.future(copies.slots, 0),
        followers([follower]),
    )[0, 0]
    begins_s = np.maximum(trace.submit_s, now_s)
    assert cost == pytest.approx(float(np.maximum(whole.start_s - begins_s, 0.0).sum()), rel=1e-9)
    assert cost > 10_000


def decide(engine: Engine, policy: Policy) -> None:
    """Let a rule decide at this instant."""
    for _, decision in decide_all(engine.state, RuleScheduler(policy), engine.now_s):
        if isinstance(decision.action, Start):
            engine._note(decision.action)


def test_followed_rules_are_the_named_ones() -> None:
    named = (
        Policy("qssf"),
        Policy("reserve", leave_free={"longer_than": "4h", "share": 0.1}),
        Policy("reserve"),
    )
    for follower, policy in zip(RULES, named, strict=True):
        rule = policy.rule
        assert rule.order == Clairvoyant.order
        assert (follower.kind == KEEP_FREE) == (rule.steps is STEPS["keep-free"])
        assert follower[1:] == tuple(getattr(rule.options, name) for name in FollowedRule._fields[1:])


def test_it_is_refused_with_nodes_that_change() -> None:
    trace, spec = synthesize("helios", jobs=20, load=1.0, gpus=16, seed=1, predictability="informative")
    logged = Engine(trace, spec, order=Clairvoyant.order, oracle=True, rules=RunRules(always=True))
    with pytest.raises(InputError, match="expected a run without models"):
        logged.run(Clairvoyant())
    state = ClusterState.from_spec(ONE_NODE, OrderedQueue(Order(by="area")))
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=0.0)
    with pytest.raises(InputError, match="the future of a simulated run"):
        Clairvoyant().decide(state, 0, 0.0)
    with pytest.raises(InputError, match="needs the true run times"):
        load_policy(Policy("clairvoyant"), None, 100.0)


def test_evaluate_runs_it_once_for_all_seeds() -> None:
    trace, spec = synthesize("helios", jobs=60, load=1.1, gpus=16, seed=2, predictability="informative")
    tasks = replay_tasks(
        trace, spec, MeasuredWindow(), predict_trace(trace, spec), [Policy("clairvoyant")], [0, 1]
    )
    (outcome,) = run_tasks(tasks, workers=1)
    assert outcome.table.start_s.tolist() == run(trace, spec, Clairvoyant()).start_s.tolist()
