"""Sources of episodes."""

from __future__ import annotations

import pytest

from rlsched.workload.synth import synthesize
from rlsched_envs.training.sources import EpisodeSource


@pytest.fixture(scope="session")
def sources() -> list[EpisodeSource]:
    out = []
    for like in ("helios", "philly"):
        trace, spec = synthesize(like, jobs=1500, load=0.95, gpus=64, seed=1)
        out.append(EpisodeSource.from_trace(trace, spec))
    return out
