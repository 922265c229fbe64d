"""An untrained policy equals the rule that it follows, job for job: `gittins`, or `easy` by size."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.choose import choose
from rlsched.cluster.kernels import occupy, vacate
from rlsched.cluster.placement import first_fitting, fits_slot
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.rows.reasons import LEGAL, RESERVED
from rlsched.decide.rules.backfill import reservation
from rlsched.decide.rules.reservation import copy_nodes, predicted_end_s
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.schema import NUM_FEATURES
from rlsched.decide.settings import SearchSettings
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.training import first_weights
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import Models
from tests.support.sim.gittins_cases import preempted, with_preemptible
from tests.support.sim.preemptive_cases import check_equal

pytestmark = pytest.mark.slow

GITTINS = Policy("gittins")
EASY = Policy("easy", order="area^0.7", reserve_after="1h")
EITHER = EASY.with_settings(preempt={"declared": True})
UNTRAINED = Policy("ppo", checkpoint="untrained")
PREEMPTION = Permissions(preemption=True)
RESERVATIONS = Permissions(reservations=True)


def untrained(permissions: Permissions, search: SearchSettings | None = None) -> PpoScheduler:
    """An untrained network with these abilities."""
    network = NetworkConfig()
    return PpoScheduler(initial_weights(network, 0), network, permissions=permissions, search=search)


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("frac", [0.0, 0.5, 1.0])
def test_untrained_it_is_gittins(like: str, frac: float) -> None:
    trace, spec = synthesize(like, jobs=300, load=1.1, gpus=32, seed=7)
    trace = with_preemptible(trace, frac)
    rule, network = (Engine(trace, spec, order=GITTINS.rule.order) for _ in range(2))
    records: list[DecisionRecord] = []
    table = rule.run(load_scheduler(GITTINS))
    other = network.run(untrained(PREEMPTION), on_record=records.append)
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


def test_untrained_under_models_it_is_gittins_with_sharing_and_cores() -> None:
    trace, spec = synthesize("helios", jobs=200, load=1.2, gpus=32, seed=3)
    trace = with_preemptible(trace, 0.5)
    rule = load_scheduler(Policy("gittins", share={}, cores=True))
    tables = [
        Engine(trace, spec, order=GITTINS.rule.order, models=Models(workload_seed=1)).run(scheduler)
        for scheduler in (rule, untrained(PREEMPTION))
    ]
    np.testing.assert_allclose(tables[0].end_s, tables[1].end_s, rtol=1e-12)


def test_trained_network_still_serves() -> None:
    """The default policy was trained without preemption: it preempts as its reference does, or otherwise."""
    trace, spec = synthesize("helios", jobs=200, load=1.1, gpus=32, seed=9)
    scheduler = PpoScheduler.from_checkpoint(load_checkpoint())
    spec = msgspec.structs.replace(spec, preemptible="all")
    table = Engine(trace, spec, order=scheduler.order).run(scheduler)
    assert np.isfinite(table.end_s).all()
    assert preempted(table) > 0


def test_look_ahead_does_not_support_preemption() -> None:
    with pytest.raises(InputError, match="futures do not support preemption"):
        untrained(PREEMPTION, SearchSettings(samples=8))


def test_fallback_is_the_rule_that_it_follows() -> None:
    for permissions, rule in ((PREEMPTION, GITTINS), (RESERVATIONS, EASY)):
        scheduler = untrained(permissions)
        assert scheduler.reference == rule
        assert scheduler.order == rule.rule.order
        assert scheduler.abilities.preempts == (rule == GITTINS)
    assert load_scheduler(UNTRAINED).reference == EITHER
    assert load_policy(UNTRAINED, None, 100.0)[1] == "reference"


@pytest.mark.parametrize("frac", [0.0, 0.3])
def test_untrained_it_reserves_until_a_job_may_be_preempted(frac: float) -> None:
    trace, spec = synthesize("helios", jobs=300, load=1.1, gpus=32, seed=7, predictability="informative")
    trace = with_preemptible(trace, frac)
    rule, network = (Engine(trace, spec, order=EITHER.rule.order) for _ in range(2))
    table, other = rule.run_rule(EITHER.rule), network.run(load_scheduler(UNTRAINED))
    np.testing.assert_array_equal(table.start_s, other.start_s)
    np.testing.assert_array_equal(table.end_s, other.end_s)
    if frac:
        assert preempted(table) == preempted(other) > 10


@pytest.mark.parametrize("like", ["helios", "philly"])
def test_untrained_it_reserves_as_easy_does(like: str) -> None:
    trace, spec = synthesize(like, jobs=600, load=1.0, gpus=32, seed=7, predictability="informative")
    compiled, stepped = (Engine(trace, spec, order=EASY.rule.order) for _ in range(2))
    records: list[DecisionRecord] = []
    table = compiled.run_rule(EASY.rule)
    other = stepped.run(untrained(RESERVATIONS), on_record=records.append)
    np.testing.assert_array_equal(table.start_s, other.start_s)
    np.testing.assert_array_equal(table.end_s, other.end_s)
    greedy = Policy(order="area^0.7").rule
    plain = Engine(trace, spec, order=greedy.order).run_rule(greedy)
    assert (plain.start_s != table.start_s).any(), "there was something to reserve"
    reasons = {reason for record in records for half in record.halves for reason in half.reasons}
    assert RESERVED in reasons


def test_older_policy_initialises_a_run_with_more_columns() -> None:
    """A policy of the schema before preemption, without the last seven columns."""
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


class Watcher(Scheduler):
    """An untrained policy that compares every window with the effects of each start."""

    name = policy_id = "watcher"

    def __init__(self) -> None:
        self.inner = untrained(RESERVATIONS)
        self.order, self.abilities = self.inner.order, self.inner.abilities
        self.seen = [0, 0]

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        window, arrays = job_candidates(state, partition, now_s), state.arrays
        head, shadow_s = for_state(reservation, state)(arrays, partition, now_s, 3600.0)
        if head >= 0 and first_fitting(arrays, partition, 0) > 0:
            for seq, reason in zip(window.seqs.tolist(), window.reasons.tolist(), strict=True):
                if seq >= 0 and reason in (LEGAL, RESERVED):
                    later_s = self._after(state, partition, seq, head, now_s)
                    assert (later_s > shadow_s) == (reason == RESERVED)
                    self.seen[int(later_s > shadow_s)] += 1
        return self.inner.decide(state, partition, now_s, record=record)

    @staticmethod
    def _after(state: ClusterState, partition: int, seq: int, head: int, now_s: float) -> float:
        """When the job with the reservation is predicted to fit once this job has started."""
        future, slot = copy_nodes(state.arrays), state.slot_of(seq)
        ends = [
            (for_state(predicted_end_s, state)(state.arrays, other, now_s), other)
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


def test_no_start_delays_the_reservation() -> None:
    """Legal starts leave the job of the reservation its time, illegal ones do not."""
    trace, spec = synthesize("helios", jobs=600, load=1.0, gpus=32, seed=7, predictability="informative")
    watcher = Watcher()
    Engine(trace, spec, order=watcher.order).run(watcher)
    assert min(watcher.seen) > 30, watcher.seen


def test_network_can_declare_its_abilities() -> None:
    network = NetworkConfig(order="predicted_size")
    weights = initial_weights(network, 0)
    assert network.permissions == RESERVATIONS
    scheduler = PpoScheduler(weights, network, permissions=network.permissions)
    assert scheduler.order == EASY.rule.order
    assert not scheduler.abilities.preempts
    other = PpoScheduler(weights, network, permissions=Permissions(preemption=True))
    assert (other.order, other.abilities.preempts) == (GITTINS.rule.order, True)
    assert PpoScheduler(weights, network, search=SearchSettings(samples=8)).order == EITHER.rule.order
    with pytest.raises(InputError, match="futures do not support preemption"):
        PpoScheduler(weights, network, permissions=other.permissions, search=SearchSettings(samples=8))
