"""Ranges seen in training are written into its output: by column, with the clusters."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.training_ranges import familiar_to
from rlsched_envs.training.sources import Drawn, EpisodeSource

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*synthesize("helios", 4000, 0.95, 64, seed=4))


def test_ranges_of_a_strategy_are_observed_with_its_dials_set(source: EpisodeSource) -> None:
    drawn = Drawn(jobs=300, nodes_low=4, nodes_high=6)
    still = Strategy.from_layers(np.zeros((NUM_DIALS, NUM_COLUMNS + 1)))
    familiar = familiar_to(still, Policy("tuned"), [source], drawn, 0)
    assert familiar == familiar_to(still, Policy("tuned"), [source], drawn, 0)
    assert list(familiar.columns) == list(NAMES)
    assert familiar.wrong() == ""
    low, high = familiar.columns["waiting_jobs"]
    assert low < high
    sizes = [np.log(nodes * source.gpus_per_node) / 8 for nodes in (4, 6)]
    assert familiar.columns["gpus"] == pytest.approx(tuple(sizes))
    assert set(familiar.gpu_types) == {"V100", "P100", "A100"}
    lively = Strategy.from_layers(np.random.default_rng(1).normal(0, 2.0, (NUM_DIALS, NUM_COLUMNS + 1)))
    other = familiar_to(lively, Policy("tuned"), [source], drawn, 0)
    assert other != familiar, "observations depend on earlier dials"
    kept = msgspec.structs.replace(lively, familiar=other)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Strategy) == kept
