"""Before training `ppo+preempt` is `gittins` and `ppo+reserve` is `easy:size`, job for job."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rlsched.broker.policy import load_policy
from rlsched.cluster.choose import choose
from rlsched.cluster.kernels import occupy, vacate
from rlsched.cluster.placement import first_fitting, fits_slot
from rlsched.cluster.state import ClusterState
from rlsched.decide import window_arrays
from rlsched.decide.actions import Preempt, Wait
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.easy import PATIENCE_S, reservation
from rlsched.decide.foresight import copy_nodes, predicted_end_s
from rlsched.decide.order.keys import Order
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Decision, Information, load_scheduler
from rlsched.decide.rows.schema import NUM_FEATURES
from rlsched.errors import InputError, UnknownSchedulerError
from rlsched.workload.synth import synthesize
from rlsched_agents.heuristics.gittins import make_gittins
from rlsched_agents.heuristics.queue_order import QueueOrder
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.training import first_weights
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.engine import Engine
from rlsched_envs.modelling import Models
from tests.contract.test_gittins_two_ways import check_equal, preempted, with_preemptible


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("frac", [0.0, 0.5, 1.0])
def test_before_training_it_is_gittins(like: str, frac: float) -> None:
    trace, spec = synthesize(like, jobs=300, load=1.1, gpus=32, seed=7)
    trace = with_preemptible(trace, frac)
    rule, network = (Engine(trace, spec, order="index") for _ in range(2))
    records: list[DecisionRecord] = []
    table = rule.run(make_gittins("", 0))
    other = network.run(load_scheduler("ppo:untrained+preempt"), on_record=records.append)
    check_equal(table, other)
    assert (preempted(table) > 10) == (frac > 0)
    for record in records:
        half = record.halves[0] if record.halves else None
        if half is not None:
            assert half.choice == half.reference
        if isinstance(record.action, Preempt):
            assert half is not None
            assert half.kind == "job"
    kinds = [type(record.action) for record in records]
    assert kinds.count(Preempt) == preempted(table)
    looks = [record.action.until_s for record in records if isinstance(record.action, Wait)]
    assert any(look is not None for look in looks) == (frac > 0)


def test_under_models_it_is_gittins_with_sharing_and_cores() -> None:
    trace, spec = synthesize("helios", jobs=200, load=1.2, gpus=32, seed=3)
    trace = with_preemptible(trace, 0.5)
    tables = [
        Engine(trace, spec, order="index", models=Models(seed=1)).run(load_scheduler(name))
        for name in ("gittins+share+cores", "ppo:untrained+preempt")
    ]
    np.testing.assert_allclose(tables[0].end_s, tables[1].end_s, rtol=1e-12)


def test_the_trained_network_still_serves() -> None:
    """The default policy knows nothing of preemption: it does so as its reference does, or otherwise."""
    trace, spec = synthesize("helios", jobs=200, load=1.1, gpus=32, seed=9)
    table = Engine(trace, spec, order="index").run(load_scheduler("ppo+preempt"))
    assert np.isfinite(table.end_s).all()
    assert preempted(table) > 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fifo+preempt", "'fifo' takes no +preempt; ppo does"),
        ("ppo+preempt+search=8", "futures know no preemption; leave out +preempt or +search"),
        ("qssf+reserve", "'qssf' takes no +reserve; ppo does"),
        ("ppo+preempt+preempt", "'ppo+preempt' says what it may do already"),
        ("ppo+preempt+reserve", "'ppo+preempt' says what it may do already"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, says: str) -> None:
    with pytest.raises(UnknownSchedulerError, match=says.replace("+", r"\+")):
        load_scheduler(name)


@pytest.mark.parametrize(
    ("ending", "rule", "order", "preempts"),
    [("+preempt", "gittins", "index", True), ("+reserve", "easy:size", "predicted_size", False)],
)
def test_behind_it_stands_the_rule_that_it_follows(
    ending: str, rule: str, order: str, preempts: bool
) -> None:
    scheduler, fallback = load_policy(f"ppo:untrained{ending}", None, 100.0)
    assert fallback == rule
    assert scheduler.order == order
    assert getattr(scheduler, "preempts", False) == preempts


@pytest.mark.parametrize("like", ["helios", "philly"])
def test_before_training_it_reserves_as_easy_does(like: str) -> None:
    trace, spec = synthesize(like, jobs=600, load=1.0, gpus=32, seed=7, predictability="informative")
    rule = load_scheduler("easy:size")
    assert isinstance(rule, QueueOrder)
    compiled, stepped = (Engine(trace, spec, order="predicted_size") for _ in range(2))
    records: list[DecisionRecord] = []
    table = compiled.run_rule(rule.rule)
    other = stepped.run(load_scheduler("ppo:untrained+reserve"), on_record=records.append)
    np.testing.assert_array_equal(table.start_s, other.start_s)
    np.testing.assert_array_equal(table.end_s, other.end_s)
    plain = Engine(trace, spec, order="predicted_size").run_rule(
        msgspec.structs.replace(rule.rule, kind="plain")
    )
    assert (plain.start_s != table.start_s).any(), "there was something to reserve"
    reasons = {reason for record in records for half in record.halves for reason in half.reasons}
    assert window_arrays.RESERVED in reasons


def test_an_older_policy_begins_a_run_of_more_columns() -> None:
    """One of the schema before preemption, which lacked the last seven columns."""
    more = 7
    network = NetworkConfig(features=NUM_FEATURES - more)
    now = load_checkpoint("default")
    old = replace(
        now,
        card=msgspec.structs.replace(now.card, network=network),
        weights=initial_weights(network, 0),
    )
    recipe = Recipe()
    first = first_weights(old, recipe)
    assert {name: array.shape for name, array in first.items()} == recipe.network.shapes()
    assert not first["actor.row1.weight"][:, NUM_FEATURES - more :].any()
    with pytest.raises(InputError, match="has other sizes than the recipe's"):
        first_weights(old, Recipe(network=NetworkConfig(width=8)))


class Watcher:
    """`ppo:untrained+reserve`, whose every window is compared with what would come of each start."""

    name = "watcher"
    order: Order = "predicted_size"
    information: Information = "causal"

    def __init__(self) -> None:
        self.inner = load_scheduler("ppo:untrained+reserve")
        self.seen = [0, 0]

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        window, arrays = job_candidates(state, partition, now_s), state.arrays
        head, shadow_s = reservation(arrays, partition, now_s, PATIENCE_S)
        if head >= 0 and first_fitting(arrays, partition, 0) > 0:
            for seq, reason in zip(window.seqs.tolist(), window.reasons.tolist(), strict=True):
                if seq >= 0 and reason in (window_arrays.LEGAL, window_arrays.RESERVED):
                    later_s = self._after(state, partition, seq, head, now_s)
                    assert (later_s > shadow_s) == (reason == window_arrays.RESERVED)
                    self.seen[int(later_s > shadow_s)] += 1
        return self.inner.decide(state, partition, now_s, record=record)

    @staticmethod
    def _after(state: ClusterState, partition: int, seq: int, head: int, now_s: float) -> float:
        """When the job with the reservation is predicted to fit once this one has started."""
        future, slot = copy_nodes(state.arrays), state.slot_of(seq)
        ends = [
            (predicted_end_s(state.arrays, other, now_s), other)
            for other in map(state.slot_of, state.running())
            if state.arrays.job.placed_in[other] == partition
        ]
        gpus = np.zeros(int(state.arrays.job.gpus[slot]), np.int32)
        host = choose(state.arrays, partition, slot, -1, gpus)
        place = occupy(future, slot, gpus, host, partition, 1000)
        mine = now_s + float(state.arrays.job.predicted_s[slot])
        for end_s, other in sorted([*ends, (mine, slot)]):
            job = future.job
            first, on = (place, host) if other == slot else (job.head[other], job.host[other])
            vacate(future, other, first, on, partition, 1000)
            if fits_slot(future, partition, head):
                return end_s
        return math.inf


def test_no_start_delays_who_has_the_reservation() -> None:
    """What is legal leaves that job its time, and what is not does not."""
    trace, spec = synthesize("helios", jobs=600, load=1.0, gpus=32, seed=7, predictability="informative")
    watcher = Watcher()
    Engine(trace, spec, order="predicted_size").run(watcher)
    assert min(watcher.seen) > 30, watcher.seen


def test_a_network_may_say_by_itself_what_it_does() -> None:
    network = NetworkConfig(order="predicted_size")
    scheduler = PpoScheduler(initial_weights(network, 0), network)
    assert scheduler.order == "predicted_size"
    assert not scheduler.preempts
    other = scheduler.with_order("ppo:x+preempt", "index")
    assert (other.order, other.preempts, scheduler.order) == ("index", True, "predicted_size")
    assert scheduler.with_search("ppo:x+search=8", "8").order == "predicted_size"
    with pytest.raises(UnknownSchedulerError, match="futures know no preemption"):
        other.with_search("ppo:x+preempt+search=8", "8")
