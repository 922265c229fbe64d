"""Look-ahead of networks that reserve: EASY continues in their futures, with reservations and holds."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise
from rlsched.decide.options import PLAIN_START
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.holds import is_held
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import CandidateRows, job_candidates
from rlsched.decide.rows.reasons import GUARD_HOLD, RESERVED
from rlsched.decide.rules.backfill import next_by_easy
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.schema import HOLD_S
from rlsched.decide.settings import SearchSettings as Amount
from rlsched.workload.synth import synthesize
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_agents.search.columns import SKIPPING, rule_to_follow
from rlsched_agents.search.search import Found, RowSearch
from rlsched_agents.search.truth import Truth
from rlsched_envs.sim import loop
from rlsched_envs.sim.constants import FINISHED, STOPPED
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.lookahead import BACKFILL, NOTHING, WAIT, FollowedRule, Futures, LookAhead, followers
from tests.support.sim.searches import BLOCKED_GANG, CONFIG, EIGHT, crowd, free, lively, replay, untrained

pytestmark = pytest.mark.slow

ONE_NODE = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4),))
PATIENCE_S = 3600.0
NEXT_BY_EASY = specialise(next_by_easy, MODELLED=False)
EASY = FollowedRule(BACKFILL, reserve_after_s=PATIENCE_S)
RESERVES = Permissions(reservations=True)
SIZE = Order(by="area", gpus_power=0.7)


def test_futures_follow_the_reference_rule_of_the_abilities() -> None:
    easy = RESERVES.rule()
    assert (easy.order, easy.options.reserve_after_s) == (SIZE, PATIENCE_S)
    assert rule_to_follow(RESERVES) == EASY
    assert Permissions().reference() == Policy("qssf-backfill")
    assert rule_to_follow(Permissions()) == SKIPPING
    assert rule_to_follow(Permissions(preemption=True)) is None
    for permissions, follow in ((Permissions(), SKIPPING), (RESERVES, EASY)):
        search = untrained(search=EIGHT, permissions=permissions)._search
        assert search is not None
        assert search.follow == follow


class Watched(Scheduler):
    """A network that reserves, and waits in half of the cases; EASY with holds is compared with its mask."""

    name = policy_id = "watched"
    order = SIZE

    def __init__(self) -> None:
        flat = {name: np.zeros_like(array) for name, array in untrained().weights.items()}
        self.inner = PpoScheduler(flat, CONFIG, temperature=1.0, seed=1, permissions=RESERVES)
        self.abilities = self.inner.abilities
        self.seen = {"held": 0, "reserved": 0}

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        s, window = state.arrays, job_candidates(state, partition, now_s)
        if GUARD_HOLD not in window.reasons:  # then overdue jobs come first
            at = NEXT_BY_EASY(s, partition, PLAIN_START, now_s, PATIENCE_S, True)
            slot = s.derived.queue[partition, at] if at >= 0 else -1
            assert slot == window.arrays.slot[window.reference]
            plain = NEXT_BY_EASY(s, partition, PLAIN_START, now_s, PATIENCE_S, False)
            self.seen["held"] += plain != at
            first = first_fitting(s, partition, 0)
            while first >= 0 and is_held(s, partition, s.derived.queue[partition, first], now_s):
                first = first_fitting(s, partition, first + 1)
            self.seen["reserved"] += first != at
        return self.inner.decide(state, partition, now_s, record=record)


def test_easy_with_holds_starts_the_first_job_of_the_mask() -> None:
    trace, spec = synthesize("helios", jobs=500, load=1.1, gpus=32, seed=7, predictability="informative")
    watched = Watched()
    Engine(trace, spec, order=SIZE).run(watched)
    assert min(watched.seen.values()) > 10, watched.seen


def gang_blocked(gang_submit_s: float) -> ClusterState:
    """Three of four GPUs are taken; a gang of all four waits, and one job that fits and lasts ten hours."""
    state = ClusterState.from_spec(ONE_NODE, OrderedQueue(SIZE))
    first = state.add_job(num_gpus=3, submit_s=gang_submit_s, predicted_s=1e5, spread=0.2)
    state.start(first, (0, 1, 2), gang_submit_s)
    state.add_job(num_gpus=4, submit_s=gang_submit_s, predicted_s=600.0, spread=0.2)
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=36_000.0, spread=0.2)
    return state


def costs_of(state: ClusterState, end_s: float, rule: FollowedRule) -> list[float]:
    """Job-seconds ahead of *wait* and of the rule at once, at time 0; running jobs end at `end_s`."""
    copies = LookAhead()
    copies.take(state, 0, 0, 0.0)
    none = np.empty((1, 0))
    futures = Futures(
        duration_s=np.array([[0.0, 600.0, 36_000.0]]),
        end_s=np.array([[end_s, np.nan, np.nan]]),
        submit_s=none,
        demand=none.astype(np.int32),
        predicted_s=none,
        spread=none,
    )
    actions = np.array([WAIT, NOTHING], np.int32)
    found: list[float] = copies.costs(0, actions, np.array([2], np.int32), 1, futures, followers([rule] * 2))[
        0
    ].tolist()
    return found


def test_wait_keeps_its_hold_while_easy_continues() -> None:
    """The gang has not waited long enough for a reservation: without the hold, the small job starts."""
    state = gang_blocked(0.0)
    digest = state.digest()
    waits, starts = costs_of(state, 300.0, EASY)
    assert (waits, starts) == (300 + 900, 36_000)
    waits, starts = costs_of(state, 1e5, EASY)
    assert (waits, starts) == (1e5 + HOLD_S, 1e5), "the hold ends before the gang can start"
    assert state.digest() == digest


def test_long_waiting_gang_has_its_reservation_in_the_copy_too() -> None:
    """By then the small job runs on one of the four GPUs: it delays the gang, and is not started."""
    fresh, patient = gang_blocked(-PATIENCE_S + 1.0), gang_blocked(-1e5 + 300.0)
    assert costs_of(fresh, 300.0, EASY)[1] == 36_000
    assert costs_of(patient, 300.0, EASY) == [1200, 1200]
    assert costs_of(patient, 300.0, SKIPPING) == [1200, 36_000]


@pytest.mark.parametrize("patience", ["1h", "10m"])
def test_in_the_true_future_the_copy_runs_as_the_engine_does(patience: str) -> None:
    """Later arrivals get reservations in the copy as in the engine."""
    trace, spec = synthesize("helios", jobs=200, load=1.2, gpus=16, seed=8, predictability="informative")
    rule = Policy("easy", order="area^0.7", reserve_after=patience).rule
    engine = Engine(trace, spec, order=SIZE, predictions=predict_trace(trace, spec))
    engine.state.sort_queue(wanted=True)
    run_rule = loop.for_run(loop.run_rule, rule.steps, logged=False, modelled=False)
    assert run_rule(engine.arrays, rule.options, 80, loop.NO_CURVE) == STOPPED
    run = engine.arrays.progress.run[0]
    truth, before = Truth(engine, len(trace)), float(run.queued_s)
    copies = LookAhead(1000)
    copies.take(engine.state, 0, len(truth.coming(0)), engine.now_s)
    assert len(truth.coming(0)) == 120
    follow = followers([FollowedRule(BACKFILL, reserve_after_s=rule.options.reserve_after_s), SKIPPING])
    actions, nobody = np.array([NOTHING] * 2, np.int32), np.empty(0, np.int32)
    costs = copies.costs(0, actions, nobody, -1, truth.future(copies.slots, 0), follow)[0]
    assert run_rule(engine.arrays, rule.options, len(trace) + 1, loop.NO_CURVE) == FINISHED
    ahead = float(run.queued_s) - before
    assert costs[0] == pytest.approx(ahead, rel=1e-9)
    assert abs(costs[1] - ahead) > 1000, "there was something to reserve"


@pytest.mark.parametrize(("amount", "says"), [(EIGHT, "8"), (Amount(time_ms=2000.0), "2000ms")])
def test_it_waits_for_a_blocked_gang_where_the_network_would_not(amount: Amount, says: str) -> None:
    alone, policy = (untrained(search=one, permissions=RESERVES) for one in (None, amount))
    assert replay(BLOCKED_GANG, alone)[0].start_s.tolist() == [0, 36_020, 20]
    table, records = replay(BLOCKED_GANG, policy)
    assert table.start_s.tolist() == [0, 300, 900]
    assert [record.source for record in records] == ["automatic", "search", "policy", "automatic"]
    assert records[1].policy_id == f"ppo search={says}"


def test_without_time_it_is_the_network_job_for_job() -> None:
    run = crowd()
    alone, nothing = (run(lively(search=one, permissions=RESERVES)) for one in (None, Amount()))
    assert alone.start_s.tolist() == nothing.start_s.tolist()
    assert alone.by_source == nothing.by_source
    searched = run(lively(search=Amount(samples=4), permissions=RESERVES))
    assert searched.start_s.tolist() != alone.start_s.tolist()


def test_jobs_that_delay_the_reservation_are_never_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    best, seen = RowSearch.best, [0, 0]

    def watched(
        self: RowSearch,
        state: ClusterState,
        partition: int,
        now_s: float,
        window: CandidateRows,
        rows: list[int],
    ) -> Found:
        assert window.legal[rows].all()
        found = best(self, state, partition, now_s, window, rows)
        seen[0] += RESERVED in window.reasons and found.samples > 0
        seen[1] += found.row != rows[0]
        return found

    monkeypatch.setattr(RowSearch, "best", watched)
    trace, spec = synthesize("helios", jobs=600, load=1.2, gpus=32, seed=7, predictability="informative")
    policy = free(lively(search=Amount(samples=2), permissions=RESERVES))
    records: list[DecisionRecord] = []
    table = Engine(trace, spec, order=SIZE).run(policy, on_record=records.append)
    assert np.isfinite(table.start_s).all()
    assert seen[0] > 30, "share of windows with such jobs that were searched"
    assert seen[1] > 3
    taken = [half for record in records if record.source == "search" for half in record.halves[:1]]
    assert len(taken) == seen[1]
    assert all(half.legal[half.choice] for half in taken)


@pytest.mark.parametrize("search", [{"samples": 8}, {"time_ms": 5.0}])
def test_settings_turn_it_on(search: dict[str, float]) -> None:
    policy = load_scheduler(Policy("ppo", checkpoint="untrained", search=search))
    assert isinstance(policy, PpoScheduler)
    assert msgspec.structs.replace(policy.order, until_declared=False, index=SIZE.index) == SIZE
    assert policy._search is not None
    assert policy._search.follow == EASY


def test_reserving_checkpoint_searches() -> None:
    network = NetworkConfig(width=16, critic_width=8, order="predicted_size", prior_job=3.5)
    policy = PpoScheduler(initial_weights(network, 0), network, search=EIGHT)
    assert replay(BLOCKED_GANG, policy)[0].start_s.tolist() == [0, 300, 900]


def test_broker_searches_with_easy_as_fallback() -> None:
    asked = Policy("ppo", name="p", checkpoint="untrained", search={"time_ms": 5.0})
    scheduler, fallback = load_policy(asked, None, 100.0)
    assert (scheduler.name, fallback) == ("p", "reference")
    assert scheduler.order.until_declared
