"""With models on: environment, reference rule and policy agree on sharing, clocks and energy."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rows import columns
from rlsched.decide.rows.candidates import job_candidates, variant_candidates
from rlsched.decide.scheduler import Abilities, Scheduler
from rlsched.decide.schema import NUM_FEATURES
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.modelling import Models
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource

CLUSTERS = 8
CONFIG = EpisodeConfig(
    warmup_jobs=64,
    agent_jobs=128,
    tail_jobs=64,
    nodes_low=4,
    nodes_high=8,
    load_low=0.9,
    load_high=1.2,
    modelled_frac=0.75,
)


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*synthesize("helios", jobs=6000, load=0.95, gpus=64, seed=5))


def untrained() -> PpoScheduler:
    """An untrained policy that starts jobs, with only the abilities that models give."""
    network = NetworkConfig()
    return PpoScheduler(initial_weights(network, 0), network, permissions=Permissions())


def engine(trace: Trace, spec: ClusterSpec, **more: Any) -> Engine:
    """An engine that runs an untrained policy."""
    return Engine(trace, spec, order=Order(by="area"), **more)


def play(fleet: Fleet, choose: Any, episodes: int) -> list[dict[str, Any]]:
    """Infos of finished episodes; every observation and reward is finite."""
    for k in range(CLUSTERS):
        fleet.begin(k)
    rows: NDArray[np.int64] = np.zeros(CLUSTERS, np.int64)
    found: list[dict[str, Any]] = []
    while len(found) < episodes:
        choose(rows)
        infos = fleet.step(rows)
        assert np.isfinite(fleet.observations).all()
        assert np.isfinite(fleet.rewards).all()
        found += [info for info in infos if "episode" in info]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("learning", [False, True])
def test_following_the_reference_costs_exactly_as_much(source: EpisodeSource, learning: bool) -> None:
    """For any weight of energy: the same starts, clocks, partners and cores, so a return of 0."""
    fleet = Fleet([source], CLUSTERS, msgspec.structs.replace(CONFIG, learning=learning), 1)

    def reference(rows: NDArray[np.int64]) -> None:
        rows[:] = [fleet.reference_row(k) for k in range(CLUSTERS)]

    infos = play(fleet, reference, 24)
    assert {info["episode"]["r"] for info in infos} == {0.0}
    assert (fleet._arrays.sim.state.models.trait.times_seen.sum() > 0) == learning


def test_random_choices_cost_more(source: EpisodeSource) -> None:
    fleet = Fleet([source], CLUSTERS, CONFIG, 2)
    infos = play(fleet, fleet.sample_rows, 24)
    assert np.mean([info["episode"]["r"] for info in infos]) < -1.0


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_untrained_policy_is_the_reference_rule_with_all_abilities(weight: float) -> None:
    trace, spec = synthesize("helios", jobs=600, load=1.0, gpus=32, seed=7)
    predictions, models = predict_trace(trace, spec), Models(energy_weight=weight)
    clock = {"rule": "weighed", "energy_weight": weight}
    rule = Policy("qssf-backfill", share={}, clock=clock, cores=True).rule
    by_rule = engine(trace, spec, predictions=predictions, models=models).run_rule(rule)
    by_policy = engine(trace, spec, predictions=predictions, models=models).run(untrained())
    np.testing.assert_array_equal(by_rule.start_s, by_policy.start_s)
    np.testing.assert_array_equal(by_rule.end_s, by_policy.end_s)
    assert by_rule.energy is not None
    assert by_policy.energy is not None
    assert by_rule.energy.cluster_j == by_policy.energy.cluster_j
    assert by_policy.by_source["policy"] > 0


@pytest.mark.slow
def test_energy_weight_changes_clocks_and_nothing_without_models() -> None:
    trace, spec = synthesize("helios", jobs=400, load=1.0, gpus=32, seed=7)
    predictions, energy, jct = predict_trace(trace, spec), [], []
    for weight in (0.0, 0.5, 1.0):
        run = engine(trace, spec, predictions=predictions, models=Models(energy_weight=weight))
        table = run.run(untrained())
        assert table.energy is not None
        energy.append(float(table.energy.job_j.sum()))
        jct.append(float((table.end_s - trace.submit_s).mean()))
    assert energy[0] > energy[1] > energy[2]
    assert jct[0] < jct[2]
    assert engine(trace, spec, predictions=predictions).run(untrained()).energy is None


def test_second_half_has_rows_for_places_clocks_and_sharing() -> None:
    trace, spec = synthesize("helios", jobs=400, load=1.3, gpus=32, seed=9)
    policy, seen = untrained(), []

    class Watching(Scheduler):
        name = policy_id = "watching"
        order, abilities = policy.order, Abilities(shares=True)

        def decide(self, state: Any, partition: int, now_s: float, *, record: bool = False) -> Any:
            jobs = job_candidates(state, partition, now_s)
            legal = jobs.seqs[1:][jobs.legal[1:]].tolist()
            seen.extend(variant_candidates(state, partition, int(seq), now_s) for seq in legal)
            return policy.decide(state, partition, now_s, record=record)

    engine(trace, spec, models=Models(energy_weight=0.5)).run(Watching())
    shared = [window for window in seen if (window.arrays.partner[: len(window.seqs)] >= 0).any()]
    assert shared
    assert len(seen) > len(shared)
    saved: list[float] = []
    for window in seen:
        rows = window.features
        assert rows.shape[1] == NUM_FEATURES
        assert (rows[:, columns.ENERGY_WEIGHT] == np.float32(0.5)).all()
        alone = rows[:, columns.BY_SHARING] == 0
        assert alone.sum() % 4 == 0, "every place comes with every clock"
        assert (~alone).sum() <= 1
        assert (rows[alone, columns.CLOCK] >= 0.5).all()
        for at in range(0, int(alone.sum()), 4):
            clocks, rates = rows[at : at + 4, columns.CLOCK], rows[at : at + 4, columns.RATE]
            assert clocks[0] == 1
            assert (np.diff(clocks) < 0).all()
            assert (np.diff(rates) <= 0).all()
            power = rows[at : at + 4, columns.POWER]
            assert (np.diff(power) <= 0).all(), (
                "a light job soon reaches the floor, the idle power of a board"
            )
            saved.append(power[0] - power[-1])
        assert rows[window.reference, columns.IS_REFERENCE] == 1
    assert np.median(saved) > 0.1
