"""`rollout`: it waits where that is right, uses only data of a broker, and draws from predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError, UnknownPolicyError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.heuristics.rollout import Rollout
from rlsched_agents.search.columns import SKIPPING
from rlsched_agents.search.futures import MAX_SIGMA, draw_time_left
from rlsched_agents.search.race import FixedSamples, Raced, best_action, race
from rlsched_envs.sim import loop
from rlsched_envs.sim.constants import FINISHED, STOPPED
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.lookahead import MAX_WAITING, NOTHING, WAIT, Futures, LookAhead, followers
from tests.support.sim.rule_cases import Case, cases, check_valid

AREA = Order(by="area")
ONE_NODE = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4),))
TWO_NODES = ClusterSpec(name="c", nodes=(NodeGroup(count=2, gpus=4),))


def trace_of(*jobs: tuple[float, float, int]) -> Trace:
    """Jobs as (submission, duration, GPUs)."""
    submit, duration, gpus = zip(*jobs, strict=True)
    return Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus)


def replay(
    trace: Trace, spec: ClusterSpec, scheduler: Scheduler, predicted_s: np.ndarray | None = None
) -> tuple[JobTable, list[DecisionRecord]]:
    predictions = PredictedTimes(
        trace.duration_s.copy() if predicted_s is None else predicted_s, np.full(len(trace), 0.2)
    )
    records: list[DecisionRecord] = []
    table = Engine(trace, spec, order=AREA, predictions=predictions).run(scheduler, on_record=records.append)
    return table, records


def test_it_waits_for_a_blocked_gang_where_that_is_right() -> None:
    """Three GPUs are free in five minutes; the fourth is better kept than given away for ten hours.

    Waiting costs 580 s for the long job and 290 s for the gang; backfill lets the gang wait 36,010 s.
    """
    trace = trace_of((0, 300, 3), (10, 600, 4), (20, 36_000, 1))
    predictions = PredictedTimes(trace.duration_s.copy(), np.full(3, 0.2))
    plain = Engine(trace, ONE_NODE, order=AREA, predictions=predictions).run_rule(
        Policy("qssf-backfill").rule
    )
    assert plain.start_s.tolist() == [0, 36_020, 20]
    table, records = replay(trace, ONE_NODE, Rollout(8, 0))
    assert table.start_s.tolist() == [0, 300, 900]
    assert [type(record.action) for record in records] == [Start, Wait, Start, Start]
    assert [record.source for record in records] == ["automatic", "rule", "rule", "automatic"]


def test_it_does_not_wait_where_the_job_ends_in_time() -> None:
    table, _ = replay(trace_of((0, 3000, 3), (10, 3000, 4), (20, 60, 1)), ONE_NODE, Rollout(8, 0))
    assert table.start_s.tolist() == [0, 3000, 20]


def test_it_never_holds_a_job_for_longer_than_a_hold() -> None:
    """The gang is predicted to fit soon, again and again: `MAX_HOLD_S` ends it."""
    trace = trace_of((0, 400_000, 3), (10, 600, 4), (20, 36_000, 1))
    predicted_s = np.array([300.0, 600.0, 36_000.0])
    table, records = replay(trace, ONE_NODE, Rollout(8, 0), predicted_s)
    assert any(isinstance(record.action, Wait) for record in records)
    assert 20 < table.start_s[2] <= 20 + 43_200 + 1800


def contended(seed: int) -> tuple[Trace, np.ndarray]:
    """40 jobs in 100 s on eight GPUs, and their predictions; only those with late ends differ by the seed."""
    common = np.random.default_rng(1)
    submit_s = np.sort(common.integers(0, 100, 40)).astype(float)
    duration_s = common.integers(3, 40, 40).astype(float)
    late = submit_s + duration_s > 60
    duration_s[late] = np.random.default_rng(seed).integers(101, 9000, 40)[late]
    trace = Trace.from_columns(
        name="w",
        submit_s=submit_s,
        duration_s=duration_s,
        num_gpus=common.choice([1, 1, 1, 2, 4], 40),
    )
    return trace, common.integers(60, 40_000, 40).astype(float)


def test_decisions_use_neither_true_durations_nor_later_arrivals() -> None:
    (one, predictions), (two, _) = contended(5), contended(6)
    assert (one.duration_s != two.duration_s).sum() > 15
    until = 38
    first = replay(one, TWO_NODES, Rollout(4, 0), predictions)[1]
    other = replay(two.select(slice(0, until)), TWO_NODES, Rollout(4, 0), predictions[:until])[1]
    end_s = float(one.submit_s[until])
    early = [
        [(record.state_digest, record.action, record.source) for record in records if record.now_s < end_s]
        for records in (first, other)
    ]
    assert early[0] == early[1]
    assert sum(source == "rule" for _, _, source in early[0]) >= 3, "some choice was evaluated"


def test_same_seed_decides_the_same_and_another_draws_otherwise() -> None:
    trace, spec = synthesize("helios", jobs=150, load=1.1, gpus=16, seed=4, predictability="informative")
    predictions = predict_trace(trace, spec)

    def starts(seed: int) -> list[float]:
        table = Engine(trace, spec, order=AREA, predictions=predictions).run(Rollout(4, seed))
        found: list[float] = table.start_s.tolist()
        return found

    assert starts(1) == starts(1)
    assert starts(1) != starts(2)


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_schedules_are_valid_on_any_cluster(case: Case) -> None:
    scheduler = Rollout(2, 0)
    table = case.engine(scheduler).run(scheduler)
    check_valid(table)


def test_copy_runs_as_the_engine_does() -> None:
    """With the true run times and arrivals, the queueing ahead equals the engine's later queueing."""
    trace, spec = synthesize("helios", jobs=120, load=1.2, gpus=16, seed=8, predictability="informative")
    engine = Engine(trace, spec, order=AREA, predictions=predict_trace(trace, spec))
    engine.state.sort_queue(wanted=True)
    rule = Policy("qssf-backfill").rule
    run_rule = loop.for_run(loop.run_rule, rule.steps, logged=False, modelled=False)
    assert run_rule(engine.arrays, rule.options, 60, loop.NO_CURVE) == STOPPED
    truth, progress, job = engine.arrays.truth, engine.arrays.progress, engine.state.arrays.job
    came, before = int(progress.run[0].next_row), float(progress.run[0].queued_s)
    copies = LookAhead()
    copies.take(engine.state, 0, len(truth) - came, engine.now_s)
    row = progress.ends.row[copies.slots]
    running = np.isfinite(job.start_s[copies.slots])
    assert 0 < running.sum() < len(running) - 3
    later = slice(came, None)
    futures = Futures(
        duration_s=np.concatenate([truth.duration_s[row], truth.duration_s[later]])[None],
        end_s=np.where(running, job.start_s[copies.slots] + truth.duration_s[row], math.nan)[None],
        submit_s=truth.submit_s[later][None].copy(),
        demand=truth.demand[later][None].copy(),
        predicted_s=truth.predicted_s[later][None].copy(),
        spread=truth.spread[later][None].copy(),
    )
    nothing = (np.array([WAIT, NOTHING], np.int32), np.empty(0, np.int32), -1)
    digest = engine.state.digest()
    costs = copies.costs(0, *nothing, futures, followers([SKIPPING, SKIPPING]))
    assert engine.state.digest() == digest
    assert run_rule(engine.arrays, rule.options, len(truth) + 1, loop.NO_CURVE) == FINISHED
    ahead = float(progress.run[0].queued_s) - before
    assert ahead > 10_000
    assert costs[0].tolist() == pytest.approx([ahead, ahead], rel=1e-9)


def test_only_the_head_of_a_long_queue_and_the_candidates_are_played() -> None:
    state = ClusterState.from_spec(ONE_NODE, OrderedQueue(AREA))
    seqs = [
        state.add_job(num_gpus=1, submit_s=float(k), predicted_s=100.0 + k, spread=0.2)
        for k in range(MAX_WAITING + 40)
    ]
    state.start(seqs[7], (0,), 0.0)
    far = [state.slot_of(seqs[-1]), state.slot_of(seqs[-9]), state.slot_of(seqs[7]), -1]
    copies = LookAhead()
    copies.take(state, 0, 4, 400.0, also=np.array(far, np.int32))
    taken = state.arrays.job.seq[copies.slots].tolist()
    assert taken == [7, *(seq for seq in seqs[: MAX_WAITING + 1] if seq != 7), seqs[-9], seqs[-1]]
    copies.take(state, 0, 4, 400.0)
    assert state.arrays.job.seq[copies.slots].tolist() == taken[:-2]


@pytest.mark.parametrize("ran_s", [0.0, 100.0, 1000.0, 20_000.0])
def test_remaining_time_follows_the_conditional_lognormal(ran_s: float) -> None:
    """At every share u of the tail: P(T > ran + left) = u P(T > ran), T lognormal with median 1000 s."""

    def above(time_s: float) -> float:
        return 0.5 * math.erfc(math.log(time_s / 1000) / 1.2 / math.sqrt(2)) if time_s > 0 else 1.0

    for share in (0.95, 0.5, 0.1):
        left_s = draw_time_left(1 - share, ran_s, 1000, 1.2)
        assert above(ran_s + left_s) == pytest.approx(share * above(ran_s), rel=1e-6)


def test_job_far_beyond_its_prediction_gets_more_time() -> None:
    """Beyond `MAX_SIGMA` an approximation is used, without a jump, and no value leaves its range."""
    edge_s = 1000 * math.exp(0.5 * MAX_SIGMA)
    below, beyond = (draw_time_left(0.5, edge_s * factor, 1000, 0.5) for factor in (0.9999, 1.0001))
    assert beyond == pytest.approx(below, rel=0.15)
    for spread in (0.0, 0.3, 4.0):
        for ran_s in (1.0, 1e4, 1e7):
            for tail in (0.0, 0.5, 1 - 1e-12):
                assert 1 <= draw_time_left(tail, ran_s, 10, spread) < 1e3 * ran_s * math.exp(4 * spread)


def test_another_action_has_to_be_significantly_better() -> None:
    even = np.array([[10.0, 9.0, 2.0], [10.0, 11.0, 16.0], [10.0, 10.0, 11.0]])
    assert best_action(even) == 0, "9.7 on average, by one lucky sample"
    assert best_action(even - [0.0, 0.0, 12.0]) == 2
    assert best_action(np.full((4, 3), 7.0)) == 0
    assert best_action(np.array([[10.0, 9.0]])) == 1, "one sample has no error"


def test_race_drops_actions_that_are_no_better_at_half_time() -> None:
    asked: list[tuple[list[int], int]] = []

    def costs_of(some: np.ndarray, part: slice) -> np.ndarray:
        asked.append((some.tolist(), part.stop - part.start))
        return np.tile([10.0, 12.0, 4.0], (part.stop - part.start, 1))[:, some]

    assert race(costs_of, 3, FixedSamples(5)) == Raced(2, 5)
    assert asked == [([0, 1, 2], 3), ([0, 2], 2)]
    asked.clear()
    assert race(lambda some, part: costs_of(some, part)[:, :2], 2, FixedSamples(8)) == Raced(0, 4)
    assert [count for _, count in asked] == [4]


@pytest.mark.parametrize("samples", [0, -1, 2000])
def test_invalid_number_of_samples_is_reported(samples: int) -> None:
    with pytest.raises(InputError, match=f"samples: expected 1 to 1000 futures, got {samples}"):
        Policy("rollout", samples=samples)


@pytest.mark.parametrize("samples", ["x", 1.5])
def test_number_of_samples_is_an_integer(samples: object) -> None:
    with pytest.raises(InputError, match="samples: expected `int`"):
        Policy("rollout", samples=samples)


def test_name_and_samples_are_settings() -> None:
    scheduler = load_scheduler(Policy("rollout", name="sixteen", samples=16), seed=3)
    assert isinstance(scheduler, Rollout)
    assert scheduler.name == "sixteen"
    assert scheduler._search.budget.at_once == 16
    with pytest.raises(UnknownPolicyError):
        Policy.of("rollout:16")
