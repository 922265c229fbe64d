"""A network learns by imitation to set the dials that its teachers set, each on the teacher's windows."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, dials_of
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.drift import Familiar
from rlsched.decide.policies.policy import Policy
from rlsched.energy.synth import synthesize
from rlsched.workload.synth import synthesize as synthesize_trace
from rlsched_agents.dials import imitation
from rlsched_agents.dials.imitation import Teacher, imitate
from rlsched_agents.dials.lesson import PpoConfig
from rlsched_agents.dials.ppo import DialPpo
from rlsched_envs.training.sources import Drawn, EpisodeSource

PLAIN = Drawn(jobs=60, nodes_low=2, nodes_high=2)
PRICED = Drawn(jobs=60, nodes_low=2, nodes_high=2, thins=True, slack_fracs=(1.0,), energy_weights=(0.3,))
CONFIG = PpoConfig(clusters=2, rollout_steps=8, batch_size=16, width=16)


def constant(dial: str, value: float) -> tuple[np.ndarray]:
    """A strategy that sets one dial to a constant."""
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[list(RANGES).index(dial), -1] = np.arctanh(value)
    return (weights,)


def test_network_sets_the_dials_of_each_teacher_on_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "CLUSTERS", 4)
    monkeypatch.setattr(imitation, "STEPS", 40)
    trace, spec = synthesize_trace("helios", jobs=1500, load=0.95, gpus=64, seed=1)
    source = EpisodeSource.from_trace(trace, spec)
    priced = source.with_prices(synthesize("solar", datetime(2026, 1, 1, tzinfo=UTC), 200, seed=1))
    teachers = (
        Teacher(constant("margin", 0.4), (source,), PLAIN),
        Teacher(constant("pause", 0.6), (priced,), PRICED),
    )
    ppo = DialPpo((priced,), PRICED, Policy("tuned"), CONFIG, 0)
    assert imitate(ppo.network, teachers, Policy("tuned"), 0) < 0.1
    seen = np.zeros((2, NUM_COLUMNS), np.float32)
    seen[1, NAMES.index("running_slack")] = seen[1, NAMES.index("price")] = 1.0
    without, with_price = dials_of(ppo.result, seen)[
        :, [list(RANGES).index(name) for name in ("margin", "pause")]
    ]
    assert without[0] > without[1]
    assert with_price[1] > with_price[0]


def test_ranges_of_two_kinds_of_windows_are_joined() -> None:
    one = Familiar(columns={"price": (0.0, 0.0)}, nodes=(6, 10), gpus=(48, 80), gpu_types=("V100",))
    two = Familiar(columns={"price": (-1.0, 2.0)}, nodes=(4, 8), gpus=(32, 64), gpu_types=("V100", "A100"))
    both = Familiar(columns={"price": (-1.0, 2.0)}, nodes=(4, 10), gpus=(32, 80), gpu_types=("V100", "A100"))
    assert one.union(two) == two.union(one) == both
