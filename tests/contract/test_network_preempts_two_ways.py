"""`ppo+preempt` before training is `gittins`, job for job; and what goes with the name."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.broker.policy import load_policy
from rlsched.decide.actions import Preempt, Wait
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import load_scheduler
from rlsched.decide.schema import NUM_FEATURES
from rlsched.errors import InputError, UnknownSchedulerError
from rlsched.workload.synth import synthesize
from rlsched_agents.heuristics.gittins import make_gittins
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.training import first_weights
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.network import NetworkConfig
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
        ("ppo+preempt+search=8", "futures know no preemption"),
        ("ppo+preempt+preempt", "'ppo+preempt' preempts already"),
    ],
)
def test_names_that_mean_nothing_are_refused(name: str, says: str) -> None:
    with pytest.raises(UnknownSchedulerError, match=says.replace("+", r"\+")):
        load_scheduler(name)


def test_behind_it_stands_a_rule_that_preempts() -> None:
    scheduler, fallback = load_policy("ppo:untrained+preempt", None, 100.0)
    assert fallback == "gittins"
    assert scheduler.order == "index"
    assert getattr(scheduler, "preempts", False)


def test_an_older_policy_begins_a_run_of_more_columns() -> None:
    """The default policy is of the schema before preemption."""
    old = load_checkpoint("default")
    recipe = Recipe(network=msgspec.structs.replace(old.card.network, features=NUM_FEATURES))
    first = first_weights(old, recipe)
    assert {name: array.shape for name, array in first.items()} == recipe.network.shapes()
    more = NUM_FEATURES - old.card.network.features
    assert more >= 0
    assert not first["actor.row1.weight"][:, NUM_FEATURES - more :].any()
    with pytest.raises(InputError, match="has other sizes than the recipe's"):
        first_weights(old, Recipe(network=NetworkConfig(width=8)))
