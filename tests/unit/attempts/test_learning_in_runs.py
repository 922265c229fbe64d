"""Speeds of co-tenants that a run learns: when, and from which observations only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start
from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.forecast.arrivals import RecentJobs
from rlsched.forecast.world import World
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.lessons import WATCH_S
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.physics import true_share
from rlsched_envs.sim.play_forward import PlayForward
from rlsched_envs.training.dial_env import DialFleet
from rlsched_envs.training.sources import Drawn, EpisodeSource
from tests.support.sim.changing_speed import Script
from tests.support.sim.play import trace_of

CATALOGUE = load_catalogue()
LIGHT, HEAVY = "a2c-b64", "gpt2-b4"
SHARING = Policy("qssf-backfill", share={})
A, B = CATALOGUE.number(LIGHT), CATALOGUE.number(HEAVY)


def together(
    since_s: float, looks: list[float], *, lasts_s: float = 5000.0, **models: Any
) -> list[dict[str, float]]:
    """Predicted speeds of two jobs on one V100, the second from `since_s` on, at the times `looks`.

    At each of these times a third job arrives on another GPU, as an event.
    """
    jobs = [(0, lasts_s, 1), (0, 5000, 1), *((at, 0.5, 1) for at in looks)]
    trace = trace_of(jobs, workload=[LIGHT, HEAVY, *([LIGHT] * len(looks))])
    cluster = ClusterSpec(name="hand", nodes=(NodeGroup(count=2, gpus=1, gpu_type="V100"),))
    engine = Engine(trace, cluster, order=Order(), oracle=True, models=Models(workload_seed=1, **models))
    todo: dict[float, list[Action]] = {0: [Start(0, (0,))]}
    todo.setdefault(since_s, []).append(Start(1, (0,), share_with=0))
    for k, at in enumerate(looks):
        todo[at] = [Start(2 + k, (1,))]
    script = Script(todo)
    seen: list[dict[str, float]] = []

    def look(now_s: float) -> None:
        if now_s in looks:
            t = engine.state.arrays.models.trait
            true = true_share(engine.arrays.progress, engine.state.arrays, 0, 0)
            seen.append(
                {
                    "one": float(t.beside[A, 0, B]),
                    "two": float(t.beside[B, 0, A]),
                    "modelled": float(t.modelled[A, 0, B]),
                    "true": float(true),
                    "times": float(t.times_seen.sum()),
                }
            )

    engine.run(script, on_instant=look)
    return seen


def test_observed_pair_reveals_both_speeds() -> None:
    early, late = together(100, [100 + WATCH_S - 1, 100 + WATCH_S])
    assert (early["one"], early["times"], late["times"]) == (early["modelled"], 0, 2)
    assert late["true"] != pytest.approx(late["modelled"], rel=0.02)
    assert late["one"] == pytest.approx(late["true"], rel=0.02)


def test_pair_is_observed_once() -> None:
    assert [look["times"] for look in together(0, [400.0, 3000.0])] == [2, 2]


def test_pair_that_ends_early_teaches_nothing() -> None:
    assert [look["times"] for look in together(10, [2000.0], lasts_s=200.0)] == [0]


@pytest.mark.parametrize("off", [{"learning": False}, {"noise": False}])
def test_nothing_is_learned_if_disabled_or_already_known(off: dict[str, bool]) -> None:
    [look] = together(0, [4000.0], **off)
    assert (look["times"], look["one"]) == (0, look["modelled"])


def test_job_limited_by_its_cores_teaches_nothing_about_the_gpu() -> None:
    """With half of its cores, its speed is limited by them; the speed of its partner by the GPU."""
    fed = next(n for n in CATALOGUE.names if CATALOGUE.cell(n, "V100", "cores_each").value >= 6)  # type: ignore[union-attr]
    trace = trace_of([(0, 5000, 1), (0, 5000, 1)], workload=[fed, LIGHT], num_cpus=[1.0, 1.0])
    cluster = ClusterSpec(name="hand", nodes=(NodeGroup(gpus=1, gpu_type="V100", cpus=2),))
    engine = Engine(trace, cluster, order=Order(), oracle=True, models=Models())
    engine.run(Script({0: [Start(0, (0,)), Start(1, (0,), share_with=0)], 400: []}))
    seen = engine.state.arrays.models.trait.times_seen
    assert seen[CATALOGUE.number(fed), 0].sum() == 0


def crowd() -> tuple[Any, ClusterSpec, Any]:
    trace, spec = synthesize("helios", jobs=500, load=1.2, gpus=32, seed=7)
    return trace, spec, predict_trace(trace, spec)


def test_compiled_and_stepwise_runs_learn_alike_to_the_last_bit() -> None:
    trace, spec, predictions = crowd()
    rule = SHARING.rule
    compiled, stepwise, blind = (
        Engine(trace, spec, order=rule.order, predictions=predictions, models=Models(learning=learn))
        for learn in (True, True, False)
    )
    one, other = compiled.run_rule(rule), stepwise.run(RuleScheduler(SHARING))
    np.testing.assert_array_equal(one.end_s, other.end_s)
    learnt = compiled.state.arrays.models.trait
    assert learnt.times_seen.sum() > 20
    assert learnt.tobytes() == stepwise.state.arrays.models.trait.tobytes()
    assert (one.end_s != blind.run_rule(rule).end_s).any(), "decisions use the learned speeds"


class Forecasting(Scheduler):
    """Decides as a rule, but simulates futures before each decision and discards them."""

    def __init__(self, inner: RuleScheduler) -> None:
        self._inner, self._player, self.foreseen = inner, PlayForward(2), 0
        self.name, self.policy_id, self.order = inner.name, inner.policy_id, inner.order
        self.abilities = inner.abilities

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The decision of the rule."""
        world = World(state, self._inner.rule, now_s, {}, RecentJobs())
        self.foreseen += bool(np.isfinite(self._player.play(world).end_s).all())
        return self._inner.decide(state, partition, now_s, record=record)


@pytest.mark.slow
def test_forecasts_teach_nothing() -> None:
    """While jobs share and teach, hundreds of starts are simulated on copies."""
    trace, spec, predictions = crowd()
    few, known = trace.select(slice(0, 200)), type(predictions)(*(one[:200] for one in predictions))
    scheduler = RuleScheduler(SHARING)
    forecasting = Forecasting(scheduler)
    plain, played = (
        Engine(few, spec, order=scheduler.order, predictions=known, models=Models()) for _ in range(2)
    )
    np.testing.assert_array_equal(plain.run(scheduler).end_s, played.run(forecasting).end_s)
    assert forecasting.foreseen > 5
    learnt = plain.state.arrays.models.trait
    assert learnt.times_seen.sum() > 0
    assert learnt.tobytes() == played.state.arrays.models.trait.tobytes()


def test_clusters_of_a_fleet_share_the_known_speeds_and_learn_none() -> None:
    source = EpisodeSource.from_trace(*synthesize("helios", jobs=1000, load=1.0, gpus=64, seed=5))
    drawn = Drawn(jobs=200, nodes_low=2, nodes_high=2, load_low=1.1, load_high=1.2)
    fleet = DialFleet([source], 2, drawn, Policy("tuned"), 1)
    trait = fleet._episodes.sim.state.models.trait
    before = trait.tobytes()
    for k in range(2):
        fleet.begin(k)
    for _ in range(20):
        fleet.step(np.zeros((2, NUM_DIALS)))
    assert trait.shape[0] == 1
    assert trait.times_seen.sum() == 0
    assert trait.tobytes() == before
