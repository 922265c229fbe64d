"""The study of dials: its windows, its settings, and the lines of its tables."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.workload.synth import synthesize
from rlsched_agents.dials.judging import ALL_ZERO, Judge
from rlsched_agents.dials.verdict import compared
from rlsched_envs.training.sources import EpisodeSource
from studies.policy import dials


@pytest.fixture(scope="module")
def sources() -> list[EpisodeSource]:
    return [EpisodeSource.from_trace(*synthesize("helios", 900, 0.95, 64, seed=seed)) for seed in (1, 2)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dials, "DRAWN", msgspec.structs.replace(dials.DRAWN, jobs=150, nodes_high=6))


@pytest.mark.parametrize("label", list(dials.OTHERS))
def test_every_other_setting_is_a_rule(label: str) -> None:
    other = dials.other(label)
    assert other != dials.POLICY
    assert other.rule.steps == dials.POLICY.rule.steps


def test_unchanged_settings_cost_exactly_the_same(sources: list[EpisodeSource]) -> None:
    pools = dials.windows(sources, 6, 3, 0.5)
    assert sum(len(pool) for pool in pools) == 12
    assert len(pools) == len(dials.SCALES)
    kinds = {setting.kinds for pool in pools for setting in pool.settings}
    assert {len(one) for one in kinds} == {1, 3}, "uniform clusters, and mixed ones"
    judge = Judge(pools, workers=1)
    one, other = judge.run([ALL_ZERO, ALL_ZERO])
    judge.close()
    line = dials.row("the same", compared(judge, one, other))
    assert line.startswith("| the same | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |")


def test_scales_change_the_assumptions(sources: list[EpisodeSource]) -> None:
    rng = np.random.default_rng(0)
    setting = dials.draw_setting(sources[0], dials.DRAWN, rng)
    costs = [
        dials.Windows([setting], sources[:1], dials.DRAWN, dials.POLICY, assumed_scale=scale).run(ALL_ZERO)[0]
        for scale in dials.SCALES
    ]
    assert len({float(one.delay_s) for one in costs}) == len(costs)
