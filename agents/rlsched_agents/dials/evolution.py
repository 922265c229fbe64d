"""Trains linear strategies by evolution: the costs of random candidates give the direction of each step.

After Salimans et al., «Evolution Strategies as a Scalable Alternative to Reinforcement Learning» (2017), with
the steps of Adam (Kingma, Ba, ICLR 2015). A pair of candidates is the mean plus and minus the same noise
(antithetic). Both run on the same window with the same random numbers. Each pair has its own window: many
pairs on one window each give a better gradient than few pairs on many windows.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.dials import PRICE_DIALS
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.dials.turning import RANGES
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Floats, Judge

_ONE_IN_TEN: Final = 1.28
"""90 % quantile of the standard normal distribution. By pure chance, `Evolution.signal` of n weights has the
standard deviation sqrt(2 / n).
"""
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
"""Columns (observed features) on which the dials of a linear strategy depend, in addition to a constant."""
PRICED_COLUMNS: Final = (
    "waiting_per_gpu",
    "free",
    "energy_weight",
    "price",
    "price_rank_6_h",
    "price_rank_24_h",
    "price_lowest",
    "price_rise",
    "price_day",
    "deferred",
    "running_slack",
)
PRICED_DIALS: Final = ("gpu_price", *PRICE_DIALS)
"""Dials of a linear strategy that depend on `PRICED_COLUMNS` in windows with prices of electricity."""
UNPRICED_DIALS: Final = tuple(name for name in RANGES if name not in PRICE_DIALS)


class EvolutionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyperparameters of the evolution of a strategy.

    Attributes:
        generations: Number of generations.
        pairs: Number of pairs of candidates per generation.
        most: Limit to which the difference of ln(cost) between the candidates of a pair is clipped.
        spread: Standard deviation of the noise on each weight.
        step: Adam's step size at the start.
        final_step_frac: Step size at the end, as a fraction of `step`.
        averaged_frac: Fraction of the generations, counted from the end, whose mean weights are the result.
        patience: Number of generations after which evolution stops if its signal-to-noise ratio
            (`Generation.signal`) is below the 90 % quantile of pure chance.
        dials: Dials that evolve; the others stay at 0.
        columns: Columns (observed features) on which the dials depend; empty: the dials are constants.
    """

    generations: int = 40
    pairs: int = 240
    most: float = 0.3
    spread: float = 0.2
    step: float = 0.04
    final_step_frac: float = 0.25
    averaged_frac: float = 0.5
    patience: int = 12
    dials: tuple[str, ...] = UNPRICED_DIALS
    columns: tuple[str, ...] = COLUMNS

    def with_prices(self) -> EvolutionConfig:
        """Return a copy for windows with prices. Non-default `dials` or `columns` stay unchanged.

        By default, `PRICED_DIALS` depend on `PRICED_COLUMNS`, with half the noise, because columns of prices
        have larger values. If `columns` is empty, all dials evolve as constants.
        """
        dials, columns, spread = self.dials, self.columns, self.spread
        if columns == COLUMNS:
            columns, spread = PRICED_COLUMNS, spread / 2.0
        if dials == UNPRICED_DIALS:
            dials = PRICED_DIALS if columns else tuple(RANGES)
        return msgspec.structs.replace(self, dials=dials, columns=columns, spread=spread)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(D, F + 1) mask of the weights that evolve.

        A row has the weights of one dial: one for each of F columns (observed features), then the constant.
        """
        columns = [name in self.columns for name in NAMES] + [True]
        rows = [name in self.dials for name in RANGES]
        return np.outer(rows, columns)


class Generation(msgspec.Struct, frozen=True):
    """Figures of one step of a training stage.

    A step is a tried setting, a generation of evolution, or a rollout of PPO.

    Attributes:
        number: Index of this step in its stage, from 1.
        cost: Cost relative to the reference. For a setting, and for the candidates of a generation: geometric
            mean over the windows. For a rollout of PPO: mean over the episodes that ended in the rollout.
        signal: Signal-to-noise ratio of all pairs so far: (square of the mean gradient / its expected value
            by pure chance) - 1. None: not measured.
        figures: Further figures for the training curves, by name.
    """

    number: int
    cost: float
    signal: float | None
    figures: dict[str, float] = {}


class Evolution:
    """One run of the evolution strategy: each call of `step` is a generation. The state is plain data.

    Args:
        judge: Runs candidates on the training windows.
        config: Hyperparameters.
        seed: Seed of the draws.
        start: (D, F + 1) initial weights; None: all 0. A row has the weights of one dial: one for each of F
            columns (observed features), then the constant.
    """

    def __init__(self, judge: Judge, config: EvolutionConfig, seed: int, start: Floats | None = None) -> None:
        self._judge, self.config = judge, config
        self._rng = np.random.default_rng(seed)
        self.mean: Floats = np.array(start) if start is not None else np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
        self._mask = config.mask
        self._first, self._second = (np.zeros(int(self._mask.sum())) for _ in range(2))
        self._reference: Costs = judge.run([ALL_ZERO])[0]
        self.number = 0
        self._pulls, self._squares, self._count = np.zeros_like(self._first), np.zeros_like(self._first), 0
        self._total = np.zeros_like(self.mean)

    @property
    def result(self) -> Floats:
        """(D, F + 1) weights, as the mean of the last generations (`averaged_frac`).

        Until the first of these generations has ended: the current weights.
        """
        kept = self.number - self._first_averaged
        return self._total / kept if kept > 0 else self.mean

    @property
    def _first_averaged(self) -> int:
        """Number of generations that are not averaged for the result."""
        return int(self.config.generations * (1.0 - self.config.averaged_frac))

    @property
    def signal(self) -> float:
        """Signal-to-noise ratio of all pairs so far; see `Generation`."""
        if self._count < 2:
            return 0.0
        mean = self._pulls / self._count
        chance = (self._squares / self._count - mean**2) / self._count
        return max(float((mean**2).sum()) / max(float(chance.sum()), 1e-30) - 1.0, 0.0)

    @property
    def is_lost(self) -> bool:
        """Whether evolution must stop: its signal-to-noise ratio is too low (`EvolutionConfig.patience`)."""
        if self.number != self.config.patience:
            return False
        return self.signal < _ONE_IN_TEN * float(np.sqrt(2.0 / self._pulls.size))

    def step(self) -> Generation:
        """Run one generation."""
        config, judge = self.config, self._judge
        which = self._windows(config.pairs)
        noise = self._rng.normal(size=(config.pairs, int(self._mask.sum())))
        tried = [
            ((self._moved(sign * config.spread * one),), int(k))
            for one, k in zip(noise, which, strict=True)
            for sign in (1.0, -1.0)
        ]
        found, there = judge.run_pairs(tried), self._reference.rows(which)
        weight = judge.energy_weight[which]
        sides = [found.rows(slice(side, None, 2)) for side in (0, 1)]
        penalties = sides[0].training_penalties(sides[1:], there)
        worse, better = (one.ln_ratio(there, weight, penalties) for one in sides)
        half = np.clip(worse - better, -config.most, config.most)[:, None] / 2.0
        pulls = half * noise / config.spread
        self._pulls += pulls.sum(axis=0)
        self._squares += (pulls**2).sum(axis=0)
        self._count += len(pulls)
        self._ascend(pulls.mean(axis=0))
        self.number += 1
        if self.number > self._first_averaged:
            self._total += self.mean
        cost = float(np.exp((worse.mean() + better.mean()) / 2.0))
        return Generation(self.number, cost, self.signal)

    def _windows(self, count: int) -> NDArray[np.int64]:
        """Draw the indices of `count` windows in random order. All windows occur about equally often."""
        every = len(self._judge.settings)
        rounds = [self._rng.permutation(every) for _ in range(-(-count // every))]
        return np.concatenate(rounds)[:count]

    def _moved(self, by: Floats) -> Floats:
        weights = self.mean.copy()
        weights[self._mask] += by
        return weights

    def _ascend(self, gradient: Floats) -> None:
        """Move the mean by a step of Adam against the gradient of the cost. The step size falls linearly."""
        left = 1.0 - self.number / max(self.config.generations, 1)
        share = self.config.final_step_frac + (1.0 - self.config.final_step_frac) * left
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.95 * self._second + 0.05 * gradient**2
        first = self._first / (1.0 - 0.9 ** (self.number + 1))
        second = self._second / (1.0 - 0.95 ** (self.number + 1))
        self.mean[...] = self._moved(-self.config.step * share * first / (np.sqrt(second) + 1e-8))

    def get_state(self) -> dict[str, Any]:
        """Return the state as arrays and plain data."""
        return {
            "number": self.number,
            "count": self._count,
            "rng": self._rng.bit_generator.state,
            "arrays": [array.tolist() for array in self._arrays],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.number, self._count = int(state["number"]), int(state["count"])
        self._rng.bit_generator.state = state["rng"]
        for mine, theirs in zip(self._arrays, state["arrays"], strict=True):
            mine[...] = theirs

    @property
    def _arrays(self) -> list[Floats]:
        return [self.mean, self._first, self._second, self._pulls, self._squares, self._total]
