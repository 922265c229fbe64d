"""`ppo` with look-ahead: equal to the network without time, better where that errs, within its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.settings import SearchSettings as Amount
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.run import load_policies
from rlsched_agents.runtime.network import initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_agents.search.race import CLEAR, MOST, Raced, TimeBudget, race
from rlsched_agents.search.search import RowSearch, rows_of_network
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.modelling import Models
from tests.support.sim.rule_cases import Case, cases, check_valid
from tests.support.sim.searches import (
    BLOCKED_GANG,
    CONFIG,
    EIGHT,
    ONE_NODE,
    crowd,
    free,
    lively,
    replay,
    untrained,
)


class Ticks:
    """A clock that advances by a number of seconds with every reading."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s


def test_without_time_it_is_the_network_job_for_job() -> None:
    run = crowd()
    alone = run(lively())
    assert alone.by_source["policy"] > 50
    nothing = run(lively(search=Amount()))
    late = lively(search=Amount(time_ms=5.0))
    late._search = RowSearch(TimeBudget(5.0, Ticks(1.0)), 0)
    too_late = run(late)
    for table in (nothing, too_late):
        assert table.start_s.tolist() == alone.start_s.tolist()
        assert table.by_source == alone.by_source
    assert run(lively(search=Amount(samples=4))).start_s.tolist() != alone.start_s.tolist()


@pytest.mark.parametrize(("amount", "says"), [(EIGHT, "8"), (Amount(time_ms=2000.0), "2000ms")])
def test_it_waits_for_a_blocked_gang_where_the_network_would_not(amount: Amount, says: str) -> None:
    assert replay(BLOCKED_GANG, untrained())[0].start_s.tolist() == [0, 36_020, 20]
    table, records = replay(BLOCKED_GANG, untrained(search=amount))
    assert table.start_s.tolist() == [0, 300, 900]
    assert [type(record.action) for record in records] == [Start, Wait, Start, Start]
    assert [record.source for record in records] == ["automatic", "search", "policy", "automatic"]
    assert table.by_source == {"automatic": 2, "search": 1, "policy": 1}
    changed, kept = records[1], records[2]
    assert (changed.halves[0].choice, changed.overruled) == (0, changed.halves[0].reference)
    assert changed.halves[0].logits[changed.overruled] == max(changed.halves[0].logits)
    assert changed.samples >= 4
    assert (kept.overruled, kept.policy_id) == (-1, f"ppo search={says}")


def test_with_uninformative_predictions_only_the_network_decides() -> None:
    """The median counts: a few uninformative predictions do not stop the search."""
    for spreads, starts, samples in (
        ((1.1, 1.2, 0.2), [0, 36_020, 20], 0),
        ((0.2, 0.2, 1.2), [0, 300, 900], 8),
    ):
        table, records = replay(BLOCKED_GANG, untrained(search=EIGHT), spreads)
        assert table.start_s.tolist() == starts
        assert max(record.samples for record in records) == samples
    table, records = replay(BLOCKED_GANG, free(untrained(search=EIGHT)), (1.1, 1.2, 0.2))
    assert max(record.samples for record in records) > 0


def test_it_starts_the_short_job_where_the_network_would_start_the_long_one() -> None:
    """Of two gangs with one demand, so that the short one is the reference's row."""
    jobs = ((0.0, 300.0, 4), (10.0, 60.0, 4), (20.0, 36_000.0, 4))
    assert replay(jobs, untrained(-3.5))[0].start_s.tolist() == [0, 36_300, 300]
    table, records = replay(jobs, untrained(-3.5, search=EIGHT))
    assert table.start_s.tolist() == [0, 300, 360]
    assert [record.source for record in records] == ["automatic", "search", "automatic"]


def test_same_samples_decide_the_same_and_another_seed_draws_otherwise() -> None:
    run = crowd()

    def starts(seed: int) -> list[float]:
        policy = PpoScheduler(initial_weights(CONFIG, 0), CONFIG, seed=seed, search=Amount(samples=4))
        found: list[float] = run(policy).start_s.tolist()
        return found

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


def test_searching_keeps_the_state_and_recording_changes_nothing() -> None:
    state = ClusterState.from_spec(ONE_NODE, OrderedQueue(Order(by="area")))
    first = state.add_job(num_gpus=3, submit_s=0.0, predicted_s=300.0, spread=0.2)
    state.start(first, (0, 1, 2), 0.0)
    for gpus, predicted_s in ((4, 600.0), (1, 36_000.0), (1, 40_000.0)):
        state.add_job(num_gpus=gpus, submit_s=10.0, predicted_s=predicted_s, spread=0.2)
    policy, digest = untrained(search=EIGHT), state.digest()
    with_record = policy.decide(state, 0, 20.0, record=True)
    assert with_record.source == "search"
    assert policy.decide(state, 0, 20.0).action == with_record.action == Wait()
    assert state.digest() == digest


def test_proposals_are_the_likeliest_rows_the_reference_and_wait() -> None:
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 8), OrderedQueue(Order(by="area")))
    seqs = [
        state.add_job(num_gpus=gpus, submit_s=float(k), predicted_s=1000.0 * gpus, spread=1.0)
        for k, gpus in enumerate((9, 9, 1, 2, 2, 3, 4))
    ]
    state.start(seqs[0], (*range(8), 8), 0.0)
    window = job_candidates(state, 0, 10.0)
    row_of = {seq: row for row, seq in enumerate(window.seqs.tolist())}
    assert window.legal[[row_of[seqs[k]] for k in (2, 3, 4, 5, 6)]].all()
    assert window.reference == row_of[seqs[2]]
    assert window.legal[0]
    logits = np.zeros(len(window.seqs))
    for rank, k in enumerate((4, 3, 6, 5)):
        logits[row_of[seqs[k]]] = 9 - rank
    assert rows_of_network(state, window, logits, row_of[seqs[4]]) == [
        *(row_of[seqs[k]] for k in (4, 6, 5)),
        window.reference,
        0,
    ]
    assert rows_of_network(state, window, logits, 0)[:2] == [0, row_of[seqs[4]]]


def costs(
    clock: Ticks, play_s: float, columns: list[float], asked: list[tuple[int, int]], noise: float = 0.0
) -> Callable[[np.ndarray, slice], np.ndarray]:
    """Plays that take time on this clock, and cost the value of the column, within `noise`."""

    def play(some: np.ndarray, part: slice) -> np.ndarray:
        count = part.stop - part.start
        asked.append((len(some), count))
        clock.now_s += play_s * count * len(some)
        rows = np.tile(np.array(columns)[some], (count, 1))
        rows[:, 1:] += noise * np.where(np.arange(part.start, part.stop) % 2, 1.0, -1.0)[:, None]
        return rows

    return play


def test_number_of_samples_grows_with_the_time() -> None:
    clock, asked = Ticks(0.0), list[tuple[int, int]]()
    undecided = costs(clock, 0.001, [10.0, 9.0], asked, noise=3.0)
    assert race(undecided, 2, TimeBudget(60.5, clock)) == Raced(0, 30)
    assert asked == [(2, 1), (2, 3), (2, 4), (2, 8), (2, 14)]
    assert clock.now_s == pytest.approx(0.060), "within the budget"
    asked.clear()
    assert race(undecided, 2, TimeBudget(1e6, clock)).samples == MOST
    assert [count for _, count in asked] == [1, 3, 4, 8, 16, 32, 64, 128]


def test_decided_race_ends_before_its_time() -> None:
    clock, asked = Ticks(0.0), list[tuple[int, int]]()
    assert race(costs(clock, 0.001, [10.0, 11.0, 12.0], asked), 3, TimeBudget(1e6, clock)) == Raced(0, 4)
    assert race(costs(clock, 0.001, [10.0, 4.0, 12.0], asked, 0.1), 3, TimeBudget(1e6, clock)) == Raced(1, 4)
    asked.clear()
    gap = CLEAR / math.sqrt(8) * 0.99  # in units of the noise: clear with 16 samples, not with 8
    ended = race(costs(clock, 0.001, [10.0, 10.0 - gap], asked, 1.0), 2, TimeBudget(1e6, clock))
    assert ended == Raced(1, 16)


@pytest.mark.parametrize(("budget_ms", "samples"), [(0.5, 1), (2.5, 1), (4.5, 2), (7.9, 3)])
def test_too_few_samples_change_nothing(budget_ms: float, samples: int) -> None:
    clock = Ticks(0.0)
    best = costs(clock, 0.001, [10.0, 1.0], [])
    assert race(best, 2, TimeBudget(budget_ms, clock)) == Raced(0, samples)
    assert race(lambda _some, _part: None, 2, TimeBudget(budget_ms, clock)) == Raced(0, 0)


def test_search_starts_no_play_after_its_time() -> None:
    """Readings: beginning, first round, then one before every play of the first future."""
    state = ClusterState.from_spec(ONE_NODE, OrderedQueue(Order(by="area")))
    first = state.add_job(num_gpus=3, submit_s=0.0, predicted_s=300.0, spread=0.2)
    state.start(first, (0, 1, 2), 0.0)
    for gpus, predicted_s in ((4, 600.0), (1, 36_000.0)):
        state.add_job(num_gpus=gpus, submit_s=10.0, predicted_s=predicted_s, spread=0.2)
    window = job_candidates(state, 0, 20.0)
    found = {}
    for budget_ms in (0.9, 1.9, 2.9, 3.9, 1000.0):
        search = RowSearch(TimeBudget(budget_ms, Ticks(0.001)), 0)
        found[budget_ms] = search.best(state, 0, 20.0, window, [window.reference, 0])
    assert [one.samples for one in found.values()][:4] == [0, 0, 0, 1]
    assert all(one.row == window.reference for one in list(found.values())[:4])
    assert found[1000.0].row == 0


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_schedules_are_valid_on_any_cluster(case: Case) -> None:
    """With partitions, VCs, cores and shares of GPUs."""
    scheduler = free(lively(search=Amount(samples=2)))
    check_valid(case.engine(scheduler).run(scheduler))


@pytest.mark.slow
def test_under_models_sharing_is_left_to_the_network() -> None:
    trace, spec = synthesize("helios", jobs=120, load=1.3, gpus=16, seed=4, predictability="informative")
    policy = load_scheduler(searching(samples=2))
    predictions = predict_trace(trace, spec)
    engine = Engine(trace, spec, order=policy.order, predictions=predictions, models=Models())
    records: list[DecisionRecord] = []
    table = engine.run(policy, on_record=records.append)
    assert np.isfinite(table.end_s).all()
    starts = [(record, record.action) for record in records if isinstance(record.action, Start)]
    joins = [record for record, action in starts if action.share_with >= 0]
    assert len(joins) > 3
    assert {record.source for record in joins} <= {"policy", "automatic"}
    assert max(record.samples for record, _ in starts) == 2


def searching(**search: float) -> Policy:
    """An untrained network with look-ahead."""
    return Policy("ppo", checkpoint="untrained", search=search)


def test_search_makes_seeds_differ_where_the_network_has_one_answer() -> None:
    plain, searches = (Policy("ppo"), Policy("ppo", search={})), searching(samples=8)
    loaded = load_policies([*plain, searches], None, [0, 1])
    assert [list(loaded[policy]) for policy in plain] == [[0], [0]]
    assert list(loaded[searches]) == [0, 1]


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ({"samples": 1}, "search.samples: expected 2 to 1000 futures, or 0 for as many as fit, got 1"),
        ({"samples": -3}, "search.samples: expected 2 to 1000 futures, or 0 for as many as fit, got -3"),
        ({"samples": 2000}, "search.samples: expected 2 to 1000 futures, or 0 for as many as fit, got 2000"),
        ({"samples": 1.5}, "search.samples: expected `int`, got `float`"),
        ({"time_ms": -1.0}, "search.time_ms: expected 0 to 10000 milliseconds, got -1"),
        ({"time_ms": 20_000.0}, "search.time_ms: expected 0 to 10000 milliseconds, got 20000"),
        ({"time_ms": math.nan}, "search.time_ms: expected 0 to 10000 milliseconds, got nan"),
        ({"time_ms": "5s"}, "search.time_ms: expected `float`, got `str`"),
    ],
)
def test_invalid_amount_is_reported(search: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as raised:
        searching(**search)
    assert says in str(raised.value)


@pytest.mark.parametrize("name", ["fifo", "qssf-backfill", "pack", "rollout"])
def test_rules_do_not_support_search(name: str) -> None:
    with pytest.raises(InputError, match="search: only ppo looks ahead; leave it out"):
        Policy(name, search={"samples": 8})


def test_broker_searches_within_the_time_of_a_decision() -> None:
    scheduler, fallback = load_policy(searching(time_ms=5.0).named("p"), None, 100.0)
    assert (scheduler.name, fallback) == ("p", "reference")
    assert scheduler.abilities.search_ms == 5.0
    for time_ms in (100.0, 150.0):
        with pytest.raises(InputError, match=f"a search of {time_ms:g} ms uses up the 100 ms"):
            load_policy(searching(time_ms=time_ms), None, 100.0)
