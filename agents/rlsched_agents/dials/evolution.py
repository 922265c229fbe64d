"""Evolution of linear strategies: antithetic pairs on the same windows, and a step along what helped.

After Salimans et al., «Evolution Strategies as a Scalable Alternative to Reinforcement Learning» (2017), with
Adam's step (Kingma, Ba, ICLR 2015). All candidates of a generation see the same windows with the same luck,
so that what differs is what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.dials.turning import RANGES
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Floats, Judge

COLUMNS: Final = (
    "waiting_per_gpu",
    "waiting_jobs",
    "waiting_hours",
    "oldest_wait",
    "waiting_must_stay",
    "free",
    "sharing",
    "ends_in_1_h",
    "jobs_1_h",
    "load_1_d",
    "prediction_corr",
    "energy_weight",
    "preempts",
)
"""What a linear strategy goes by, beside a constant."""


class EvolutionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a strategy evolves.

    Attributes:
        generations: Steps.
        pairs: Pairs of candidates a generation, one as far from the mean as the other, opposite.
        windows: Windows a generation.
        spread: Standard deviation of what is added to each weight.
        step: Adam's step size ...
        final_step_frac: ... and what is left of it at the end.
        dials: Those that move.
        columns: Those that they go by; none: constants alone, a static setting.
    """

    generations: int = 40
    pairs: int = 12
    windows: int = 40
    spread: float = 0.1
    step: float = 0.03
    final_step_frac: float = 0.2
    dials: tuple[str, ...] = tuple(RANGES)
    columns: tuple[str, ...] = COLUMNS

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(D, F + 1) which weights move."""
        columns = [name in self.columns for name in NAMES] + [True]
        rows = [name in self.dials for name in RANGES]
        return np.outer(rows, columns)


class Generation(msgspec.Struct, frozen=True):
    """What one generation was like.

    Attributes:
        number: From 1 on.
        cost: Geometric mean over its candidates of cost over the reference's.
        signal_to_noise: Of the step's direction: agreement of the halves of its pairs, 0 where it is all
            noise.
    """

    number: int
    cost: float
    signal_to_noise: float


class Evolution:
    """One evolution, generation by generation; all of its state is plain.

    Args:
        judge: Windows to learn from.
        config: How.
        seed: Of the draws.
        start: (D, F + 1) weights to begin with.
    """

    def __init__(self, judge: Judge, config: EvolutionConfig, seed: int, start: Floats | None = None) -> None:
        self._judge, self.config = judge, config
        self._rng = np.random.default_rng(seed)
        self.mean: Floats = np.array(start) if start is not None else np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
        self._mask = config.mask
        self._first, self._second = (np.zeros(int(self._mask.sum())) for _ in range(2))
        self._reference: Costs = judge.run([ALL_ZERO])[0]
        self.number = 0

    def step(self) -> Generation:
        """One generation."""
        config, judge = self.config, self._judge
        which = self._rng.choice(len(judge.settings), min(config.windows, len(judge.settings)), replace=False)
        noise = self._rng.normal(size=(config.pairs, int(self._mask.sum())))
        candidates = [(self._moved(sign * config.spread * one),) for one in noise for sign in (1.0, -1.0)]
        there = Costs(*(part[which] for part in msgspec.structs.astuple(self._reference)))
        found = judge.run(candidates, which)
        cost = np.array([one.over(there, judge.energy_weight[which]).mean() for one in found])
        pulls = (cost[0::2] - cost[1::2])[:, None] / 2.0 * noise / config.spread
        gradient = pulls.mean(axis=0)
        self._ascend(gradient)
        self.number += 1
        return Generation(self.number, float(np.exp(cost.mean())), _agreement(pulls))

    def _moved(self, by: Floats) -> Floats:
        weights = self.mean.copy()
        weights[self._mask] += by
        return weights

    def _ascend(self, gradient: Floats) -> None:
        """Adam's step against the gradient of the cost; its size falls linearly."""
        left = 1.0 - self.number / max(self.config.generations, 1)
        share = self.config.final_step_frac + (1.0 - self.config.final_step_frac) * left
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.95 * self._second + 0.05 * gradient**2
        first = self._first / (1.0 - 0.9 ** (self.number + 1))
        second = self._second / (1.0 - 0.95 ** (self.number + 1))
        self.mean = self._moved(-self.config.step * share * first / (np.sqrt(second) + 1e-8))


def _agreement(pulls: Floats) -> float:
    """Signal to noise of a mean of (P, n) vectors: its square over that which noise alone would have."""
    mean, pairs = pulls.mean(axis=0), len(pulls)
    noise = float(pulls.var(axis=0, ddof=1).sum()) / pairs
    return max(float((mean**2).sum()) / max(noise, 1e-30) - 1.0, 0.0)


def sources_of(judge: Judge) -> Sequence[str]:
    """Where its windows are from, window by window."""
    return [one.source for one in judge.settings]
