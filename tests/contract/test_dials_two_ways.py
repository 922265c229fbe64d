"""Dials: at 0 a rule decides by its settings; both ways of running it set dials at the same instants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.quick import quick

EVERYTHING = Policy("tuned")
RULES = {
    "tuned": EVERYTHING,
    "learned, all may be preempted": EVERYTHING.with_settings(
        preempt={"declared": False}, reserve_after=None, order=None
    ),
    "pack": Policy("pack", share={"min_speed": 0.5, "min_gain": 0.5}),
    "gittins": Policy("gittins", predictions="revised"),
}
OTHERS = ("learned, all may be preempted", "pack")
"""Rules that only `make soak` tests."""


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of a constant strategy at 0, of a linear one, and of a network."""
    folder, rng = tmp_path_factory.mktemp("strategies"), np.random.default_rng(3)
    layers = {
        "still": [np.zeros((NUM_DIALS, NUM_COLUMNS + 1))],
        "linear": [rng.normal(0.0, 0.3, (NUM_DIALS, NUM_COLUMNS + 1))],
        "network": [
            rng.normal(0.0, 0.3, shape) for shape in ((16, NUM_COLUMNS + 1), (16, 17), (NUM_DIALS, 17))
        ],
    }
    for name, matrices in layers.items():
        Strategy.from_layers(*matrices).write(folder / f"{name}.json")
    return {name: str(folder / f"{name}.json") for name in layers}


def run(policy: Policy, *, stepped: bool = False, gpus: int = 32) -> JobTable:
    trace, spec = synthesize("helios", jobs=500, load=1.1, gpus=gpus, seed=7)
    engine = Engine(
        trace,
        spec,
        order=policy.rule.order,
        predictions=predict_trace(trace, spec),
        models=Models(energy_weight=0.3),
    )
    return engine.run(RuleScheduler(policy)) if stepped else engine.run_rule(policy.rule)


def same(one: JobTable, two: JobTable) -> bool:
    return (
        np.array_equal(one.start_s, two.start_s)
        and np.array_equal(one.end_s, two.end_s)
        and one.gpus == two.gpus
    )


@pytest.mark.parametrize("name", quick(RULES, lambda name: name == "tuned", soak=OTHERS))
def test_at_0_the_rule_decides_by_its_settings(name: str, strategies: dict[str, str]) -> None:
    policy = RULES[name]
    assert same(run(policy), run(policy.with_settings(dials=strategies["still"])))


@pytest.mark.parametrize("strategy", quick(("linear", "network"), lambda name: name == "network"))
@pytest.mark.parametrize("name", quick(RULES, lambda name: name == "tuned", soak=OTHERS))
def test_compiled_equals_one_decision_at_a_time(name: str, strategy: str, strategies: dict[str, str]) -> None:
    policy = RULES[name].with_settings(dials=strategies[strategy])
    compiled = run(policy)
    assert same(compiled, run(policy, stepped=True))
    assert not same(compiled, run(RULES[name])), "the dials changed nothing: this test checks nothing"


SHARED = {"max_jobs": 4, "min_speed": 0.3, "min_gain": 0.5}
INDEXED = Policy("gittins", share=SHARED)
SAME: dict[str, tuple[Policy, float, dict[str, Any]]] = {
    "gate_pair": (
        EVERYTHING.with_settings(share=SHARED),
        -0.5,
        {"share": {**SHARED, "min_gain": 0.25, "min_gain_more": 0.5}},
    ),
    "gate_more": (INDEXED, -0.5, {"share": {**SHARED, "min_gain_more": 0.25}}),
    "by_length": (INDEXED, 0.5, {"share": {**SHARED, "by_length": 0.25}}),
    "by_left": (INDEXED, 0.5, {"share": {**SHARED, "by_left": 0.25}}),
    "margin": (INDEXED, 0.5, {"preempt": {"by": "gittins", "margin": 1.0}}),
    "patience": (
        Policy("easy", order="area", reserve_after=7_200.0),
        -0.5,
        {"reserve_after": 7_200.0 * math.exp(-1.5)},
    ),
}
"""By dial: a rule, a position of the dial, and the resulting value of its setting."""


@pytest.mark.parametrize("dial", quick(SAME, lambda name: name == "gate_pair"))
def test_dial_equals_its_setting(dial: str, tmp_path: Path) -> None:
    policy, position, changes = SAME[dial]
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[list(RANGES).index(dial), -1] = np.arctanh(position)
    Strategy.from_layers(weights).write(tmp_path / "constant.json")
    gpus = 64 if dial == "patience" else 32  # so that it makes a difference
    dialled = run(policy.with_settings(dials=str(tmp_path / "constant.json")), gpus=gpus)
    assert same(dialled, run(policy.with_settings(**changes), gpus=gpus))
    assert not same(dialled, run(policy, gpus=gpus)), "the dial changed nothing: this test checks nothing"
