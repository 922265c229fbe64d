"""Look-ahead of networks that reserve: EASY goes on in their futures, with reservations and holds."""

from __future__ import annotations

import numpy as np
import pytest
from rlsched.decide.easy import PATIENCE_S, next_by_easy
from rlsched_agents.heuristics.keeping_room import easy_rule
from rlsched_agents.heuristics.queue_order import RULES, QueueOrder

from rlsched.broker.policy import load_policy
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide import window_arrays
from rlsched.decide.holds import is_held
from rlsched.decide.order.keys import Order
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import Window, job_candidates
from rlsched.decide.rows.schema import HOLD_S
from rlsched.decide.rules import SKIPPING, Rule
from rlsched.decide.scheduler import Decision, Information, add_search
from rlsched.errors import UnknownSchedulerError
from rlsched.workload.synth import synthesize
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_agents.search.columns import rule_to_follow
from rlsched_agents.search.search import Found, Search
from rlsched_agents.search.truth import Truth
from rlsched_envs import room_loop
from rlsched_envs import simulation as sim
from rlsched_envs.engine import Engine, predict_trace
from rlsched_envs.lookahead import NOTHING, WAIT, Futures, LookAhead, followers
from tests.unit.test_search import BLOCKED_GANG, CONFIG, crowd, free, lively, replay, untrained

ONE_NODE = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4),))
EASY = easy_rule("easy:size", "predicted_size", PATIENCE_S)


def reserving(policy: PpoScheduler) -> PpoScheduler:
    return policy.with_order("ppo+reserve", "predicted_size")


def test_what_follows_is_the_reference_rule_of_the_order() -> None:
    rule = load_scheduler("easy:size")
    assert isinstance(rule, QueueOrder)
    assert rule_to_follow("predicted_size") == rule.rule.code == EASY.code
    assert rule_to_follow("predicted_gpu_time") == RULES["qssf-backfill"].code == SKIPPING
    assert rule_to_follow("index") is None
    for policy, follow in ((untrained(), SKIPPING), (reserving(untrained()), EASY.code)):
        search = policy.with_search("p", "8")._search
        assert search is not None
        assert search.follow == follow


class Follower:
    """A network that reserves, and waits as often as not; EASY with holds is compared with its mask."""

    name = "follower"
    order: Order = "predicted_size"
    information: Information = "causal"

    def __init__(self) -> None:
        flat = {name: np.zeros_like(array) for name, array in untrained().weights.items()}
        self.inner = reserving(PpoScheduler(flat, CONFIG, temperature=1.0, seed=1))
        self.seen = {"held": 0, "reserved": 0}

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        s, window = state.arrays, job_candidates(state, partition, now_s)
        if window_arrays.GUARD_HOLD not in window.reasons:  # then those that are overdue come first
            at = next_by_easy(s, partition, now_s, PATIENCE_S, True)
            slot = s.derived.queue[partition, at] if at >= 0 else -1
            assert slot == window.arrays.slot[window.reference]
            plain = next_by_easy(s, partition, now_s, PATIENCE_S)
            assert plain == next_by_easy(s, partition, now_s, PATIENCE_S, False)
            self.seen["held"] += plain != at
            first = first_fitting(s, partition, 0)
            while first >= 0 and is_held(s, partition, s.derived.queue[partition, first], now_s):
                first = first_fitting(s, partition, first + 1)
            self.seen["reserved"] += first != at
        return self.inner.decide(state, partition, now_s, record=record)


def test_easy_that_keeps_holds_starts_what_the_mask_names_first() -> None:
    trace, spec = synthesize("helios", jobs=500, load=1.1, gpus=32, seed=7, predictability="informative")
    follower = Follower()
    Engine(trace, spec, order="predicted_size").run(follower)
    assert min(follower.seen.values()) > 10, follower.seen


def gang_blocked(gang_submit_s: float) -> ClusterState:
    """Three of four GPUs are taken; a gang of all four waits, and one job that fits and lasts ten hours."""
    state = ClusterState.from_spec(ONE_NODE, order="predicted_size")
    first = state.add_job(num_gpus=3, submit_s=gang_submit_s, predicted_s=1e5, spread=0.2)
    state.start(first, (0, 1, 2), gang_submit_s)
    state.add_job(num_gpus=4, submit_s=gang_submit_s, predicted_s=600.0, spread=0.2)
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=36_000.0, spread=0.2)
    return state


def costs_of(state: ClusterState, end_s: float, rule: Rule) -> list[float]:
    """Job-seconds ahead of *wait* and of the rule at once, at time 0; what runs ends at `end_s`."""
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
    found: list[float] = copies.costs(
        0, actions, np.array([2], np.int32), 1, futures, followers([rule.code] * 2)
    )[0].tolist()
    return found


def test_a_wait_keeps_its_hold_while_easy_goes_on() -> None:
    """The gang has not waited for long enough to have a reservation: but for the hold, the small job goes."""
    state = gang_blocked(0.0)
    digest = state.digest()
    waits, starts = costs_of(state, 300.0, EASY)
    assert (waits, starts) == (300 + 900, 36_000)
    waits, starts = costs_of(state, 1e5, EASY)
    assert (waits, starts) == (1e5 + HOLD_S, 1e5), "the hold ends before the gang can start"
    assert state.digest() == digest


def test_who_has_waited_for_long_has_the_reservation_in_the_copy_too() -> None:
    """By then the small job runs on one of the four GPUs: it delays the gang, and is not started."""
    fresh, patient = gang_blocked(-PATIENCE_S + 1.0), gang_blocked(-1e5 + 300.0)
    assert costs_of(fresh, 300.0, EASY)[1] == 36_000
    assert costs_of(patient, 300.0, EASY) == [1200, 1200]
    unreserved = Rule(name="size", order="predicted_size")
    assert costs_of(patient, 300.0, unreserved) == [1200, 36_000]


@pytest.mark.parametrize("patience_s", [PATIENCE_S, 600.0])
def test_in_the_true_future_the_copy_runs_as_the_engine_does(patience_s: float) -> None:
    """Those that come later get reservations in the copy as they do in the engine."""
    trace, spec = synthesize("helios", jobs=200, load=1.2, gpus=16, seed=8, predictability="informative")
    rule = easy_rule("r", "predicted_size", patience_s)
    engine = Engine(trace, spec, order="predicted_size", predictions=predict_trace(trace, spec))
    engine.state.sort_queue(wanted=True)
    assert room_loop.run_rule(engine.arrays, rule.code, 80) == sim.STOPPED
    progress = engine.arrays.progress
    truth, before = Truth(engine, len(trace)), progress.clock[sim.QUEUED_S]
    copies = LookAhead(1000)
    copies.take(engine.state, 0, len(truth.coming(0)), engine.now_s)
    assert len(truth.coming(0)) == 120
    follow = followers([rule.code, Rule(name="size", order="predicted_size").code])
    actions, nobody = np.array([NOTHING] * 2, np.int32), np.empty(0, np.int32)
    costs = copies.costs(0, actions, nobody, -1, truth.future(copies.slots, 0), follow)[0]
    assert room_loop.run_rule(engine.arrays, rule.code, len(trace) + 1) == sim.FINISHED
    ahead = float(progress.clock[sim.QUEUED_S] - before)
    assert costs[0] == pytest.approx(ahead, rel=1e-9)
    assert abs(costs[1] - ahead) > 1000, "there was something to reserve"


@pytest.mark.parametrize("amount", ["8", "2000ms"])
def test_it_waits_for_a_blocked_gang_where_the_network_would_not(amount: str) -> None:
    alone, policy = reserving(untrained()), reserving(untrained()).with_search("p", amount)
    assert replay(BLOCKED_GANG, alone)[0].start_s.tolist() == [0, 36_020, 20]
    table, records = replay(BLOCKED_GANG, policy)
    assert table.start_s.tolist() == [0, 300, 900]
    assert [record.source for record in records] == ["automatic", "search", "policy", "automatic"]
    assert records[1].policy_id == f"ppo+reserve+search={amount}"


def test_without_time_it_is_the_network_job_for_job() -> None:
    run = crowd()
    alone, nothing = run(reserving(lively())), run(reserving(lively()).with_search("p", "0ms"))
    assert alone.start_s.tolist() == nothing.start_s.tolist()
    assert alone.by_source == nothing.by_source
    assert run(reserving(lively()).with_search("p", "4")).start_s.tolist() != alone.start_s.tolist()


def test_what_would_delay_the_reservation_is_never_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    best, seen = Search.best, [0, 0]

    def watched(
        self: Search, state: ClusterState, partition: int, now_s: float, window: Window, rows: list[int]
    ) -> Found:
        assert window.legal[rows].all()
        found = best(self, state, partition, now_s, window, rows)
        seen[0] += window_arrays.RESERVED in window.reasons and found.samples > 0
        seen[1] += found.row != rows[0]
        return found

    monkeypatch.setattr(Search, "best", watched)
    trace, spec = synthesize("helios", jobs=600, load=1.2, gpus=32, seed=7, predictability="informative")
    policy = free(reserving(lively()).with_search("p", "2"))
    records: list[DecisionRecord] = []
    table = Engine(trace, spec, order="predicted_size").run(policy, on_record=records.append)
    assert np.isfinite(table.start_s).all()
    assert seen[0] > 30, "of windows with such jobs, so many were searched"
    assert seen[1] > 3
    taken = [half for record in records if record.source == "search" for half in record.halves[:1]]
    assert len(taken) == seen[1]
    assert all(half.legal[half.choice] for half in taken)


@pytest.mark.parametrize("amount", ["8", "5ms"])
def test_it_is_asked_for_at_the_end_of_the_name(amount: str) -> None:
    name = f"ppo:untrained+reserve+search={amount}"
    policy = load_scheduler(name)
    assert (policy.name, policy.order) == (name, "predicted_size")
    assert add_search(["ppo:untrained+reserve", "easy:size"], amount) == [name, "easy:size"]
    with pytest.raises(UnknownSchedulerError, match=r"of 2 to 1000 samples, or .* got '8\+reserve'"):
        load_scheduler("ppo:untrained+search=8+reserve")


def test_a_checkpoint_that_reserves_by_itself_searches() -> None:
    network = NetworkConfig(width=16, critic_width=8, order="predicted_size", prior_job=3.5)
    policy = PpoScheduler(initial_weights(network, 0), network, name="ppo:x").with_search(
        "ppo:x+search=8", "8"
    )
    assert replay(BLOCKED_GANG, policy)[0].start_s.tolist() == [0, 300, 900]


def test_a_broker_searches_with_easy_behind_it() -> None:
    scheduler, fallback = load_policy("ppo:untrained+reserve", None, 100.0, search_ms=5.0)
    assert (scheduler.name, fallback) == ("ppo:untrained+reserve+search=5ms", "easy:size")
    assert scheduler.order == "predicted_size"
