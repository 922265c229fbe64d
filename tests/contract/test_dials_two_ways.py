"""Dials: at 0 a rule decides as its settings say; both ways of running it set them at the same instants."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.engine import Engine, predict_trace
from rlsched_envs.job_table import JobTable
from rlsched_envs.modelling import Models
from tests.quick import quick

EVERYTHING = Policy("tuned")
RULES = {
    "tuned": EVERYTHING,
    "learned, all may be preempted": EVERYTHING.with_settings(
        preempt={"by": "gittins"}, reserve_after=None, order=None
    ),
    "pack": Policy("pack", share={"min_gain": 0.2}),
    "easy": Policy("easy", order="area^0.7", reserve_after="1h"),
    "gittins": Policy("gittins", predictions="revised"),
    "weighed": Policy("qssf-backfill", clock={"rule": "weighed"}),
}


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files: of a strategy that leaves the dials alone, of a linear one, and of a network."""
    folder, rng = tmp_path_factory.mktemp("strategies"), np.random.default_rng(3)
    layers = {
        "still": [np.zeros((NUM_DIALS, NUM_COLUMNS + 1))],
        "linear": [rng.normal(0.0, 0.3, (NUM_DIALS, NUM_COLUMNS + 1))],
        "network": [
            rng.normal(0.0, 0.3, shape) for shape in ((16, NUM_COLUMNS + 1), (16, 17), (NUM_DIALS, 17))
        ],
    }
    for name, matrices in layers.items():
        Strategy.of(*matrices).write(folder / f"{name}.json")
    return {name: str(folder / f"{name}.json") for name in layers}


def run(policy: Policy, *, stepped: bool = False) -> JobTable:
    trace, spec = synthesize("helios", jobs=500, load=1.1, gpus=32, seed=7)
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


@pytest.mark.parametrize("name", quick(RULES, lambda name: name == "tuned"))
def test_at_0_the_rule_decides_as_its_settings_say(name: str, strategies: dict[str, str]) -> None:
    policy = RULES[name]
    assert same(run(policy), run(policy.with_settings(dials=strategies["still"])))


@pytest.mark.parametrize("strategy", quick(("linear", "network"), lambda name: name == "network"))
@pytest.mark.parametrize("name", quick(RULES, lambda name: name == "tuned"))
def test_compiled_equals_one_decision_at_a_time(name: str, strategy: str, strategies: dict[str, str]) -> None:
    policy = RULES[name].with_settings(dials=strategies[strategy])
    compiled = run(policy)
    assert same(compiled, run(policy, stepped=True))
    assert not same(compiled, run(RULES[name])), "the dials moved nothing: this test shows nothing"
