"""Evaluates strategies on windows: costs relative to a reference, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.objective import Objective, Term, cost, mean_ratios, ratios
from rlsched_agents.dials.window_runs import Floats as Floats
from rlsched_agents.dials.window_runs import Layers as Layers
from rlsched_agents.dials.window_runs import LocalRunner, MakeRunner
from rlsched_envs.training.windows import Windows

LEAST_DELAY_FRAC: Final = 0.01
"""Lower limit of a window's delay, as a fraction of the total run time of its jobs. Idle cores can make jobs
faster, so that a delay could be negative.
"""
_RESAMPLES: Final = 2000
ALL_ZERO: Final = (np.zeros((NUM_DIALS, NUM_COLUMNS + 1)),)
"""The strategy that leaves all dials at 0."""


class Scored(msgspec.Struct, frozen=True):
    """Terms of n runs, and how the objective weighs them.

    Attributes:
        objective: The objective.
        terms: (n, NUM_TERMS) terms of the runs.
        offsets: (n, NUM_TERMS) amounts added to numerator and denominator of each ratio
            (`Objective.offsets`).
        weights: (n, NUM_TERMS) weights of the terms in the cost (`Objective.weights`).
    """

    objective: Objective
    terms: Floats
    offsets: Floats
    weights: Floats

    def rows(self, kept: slice | NDArray[np.int64]) -> Scored:
        """Return the terms of the selected runs, as a `Scored` object."""
        return Scored(self.objective, self.terms[kept], self.offsets[kept], self.weights[kept])

    def ratios(self, other: Scored) -> Floats:
        """Return the (n, NUM_TERMS) ratios of the terms of these runs to the terms of `other`.

        Both must be runs of the same windows.
        """
        return ratios(self.terms, other.terms, self.offsets)

    def ln_cost(self, other: Scored, penalties: Floats | None = None) -> Floats:
        """Return the (n,) ln of the cost of these runs relative to the runs `other` of the same windows.

        `penalties`: (NUM_TERMS,) penalty of each bound; None: computed from the mean ratios of these runs.
        """
        found = self.ratios(other)
        if penalties is None:
            penalties = self.objective.penalties(mean_ratios(found))
        return np.log(cost(found, self.weights, self.objective.limits, penalties))


class Costs(msgspec.Struct, frozen=True):
    """Results of n windows. All arrays have the shape (n,).

    Attributes:
        delay_s: Sum over the jobs of JCT - run time (as in `work_s`) - slack (the delay that the user
            accepts), job-seconds.
        work_s: Sum of the jobs' run times on unshared GPUs at full clock, job-seconds.
        energy_j: Energy of the jobs, joules.
        money: Cost of this energy, in any currency; for a window without prices, its energy. None if all
            windows are without prices.
        late: Number of jobs with slack that are delayed by more than slack + `rlsched.objective.LATE_S`.
            None: not counted.
        urgent_s: The part of `delay_s` that comes from jobs without slack, job-seconds; None: not counted.
        scored: Terms of the objective; None: the default objective.
    """

    delay_s: Floats
    work_s: Floats
    energy_j: Floats
    money: Floats | None = None
    late: Floats | None = None
    urgent_s: Floats | None = None
    scored: Scored | None = None

    @property
    def floored_s(self) -> Floats:
        """(n,) delays, job-seconds: the maximum of `delay_s` and `LEAST_DELAY_FRAC` x `work_s`."""
        return np.maximum(self.delay_s, LEAST_DELAY_FRAC * self.work_s)

    def rows(self, kept: slice | NDArray[np.int64]) -> Costs:
        """Return the results of the selected windows."""
        others = (self.money, self.late, self.urgent_s)
        money, late, urgent_s = (None if one is None else one[kept] for one in others)
        scored = None if self.scored is None else self.scored.rows(kept)
        return Costs(
            self.delay_s[kept], self.work_s[kept], self.energy_j[kept], money, late, urgent_s, scored
        )

    def ln_ratio(self, other: Costs, energy_weight: Floats, penalties: Floats | None = None) -> Floats:
        """Return ln(cost of these results / cost of `other`) for each of the n windows.

        Unless an objective defines another cost, this ratio is the weighted mean of the ratio of the times
        and the ratio of the money. Without prices, the ratio of the energies replaces that of the money.
        `energy_weight`: (n,) weight of money or energy. `penalties`: (NUM_TERMS,) penalty of each bound, see
        `Scored.ln_cost`.
        """
        if self.scored is not None and other.scored is not None:
            return self.scored.ln_cost(other.scored, penalties)
        time = (self.delay_s + self.work_s) / (other.delay_s + other.work_s)
        return np.log((1.0 - energy_weight) * time + energy_weight * self.money_ratio(other))

    def training_penalties(self, others: Sequence[Costs], reference: Costs) -> Floats | None:
        """Return the (NUM_TERMS,) penalties of the objective's bounds in training; None: there are no bounds.

        The penalties are computed from the mean ratio of each term to this term in `reference`. The means
        cover these results and the results `others`.
        """
        every = [one.scored for one in (self, *others)]
        if self.scored is None or reference.scored is None or not self.scored.objective.bounds:
            return None
        found = [one.ratios(reference.scored) for one in every if one is not None]
        return self.scored.objective.training_penalties(mean_ratios(np.concatenate(found)))

    def money_ratio(self, other: Costs) -> Floats:
        """Return the (n,) ratios of money to the money of `other`; without prices, the ratios of energy."""
        mine, theirs = (one.energy_j if one.money is None else one.money for one in (self, other))
        return mine / np.maximum(theirs, 1.0)


class Judge:
    """Runs strategies on windows in several processes, here or on a Ray cluster.

    Args:
        pools: Pools (sets) of windows, each with its own models. The indices of windows continue from pool to
            pool.
        workers: Number of processes; None: one per core.
        policy: Policy whose settings apply in calls without a policy; None: the policy of the windows.
        make_runner: Starts the workers; None: `workers` processes of this machine.

    Attributes:
        settings: All N windows with their conditions.
        energy_weight: (N,) weight of energy in each window.
        has_prices: Whether any window has prices of electricity.
        objective: Objective of the windows.
    """

    def __init__(
        self,
        pools: Sequence[Windows],
        *,
        workers: int | None = None,
        policy: Policy | None = None,
        make_runner: MakeRunner | None = None,
    ) -> None:
        self._policy = policy
        self.settings = [one for pool in pools for one in pool.settings]
        self._is_priced = np.array([one.tariff is not None for one in self.settings])
        self.has_prices = bool(self._is_priced.any())
        self.energy_weight = np.array([one.energy_weight for one in self.settings])
        self.objective = pools[0].objective
        self._offsets = np.concatenate([pool.offsets for pool in pools])
        self._weights = np.concatenate([pool.weights for pool in pools])
        self._pool_of = np.repeat(np.arange(len(pools)), [len(pool) for pool in pools])
        self._at = np.concatenate([np.arange(len(pool)) for pool in pools])
        pools[0].run(ALL_ZERO, [0])  # compile once, before other processes start
        self._runner = LocalRunner(pools, workers) if make_runner is None else make_runner(pools)

    def close(self) -> None:
        """Stop the workers."""
        self._runner.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        strategies: Sequence[Layers],
        which: NDArray[np.int64] | None = None,
        policy: Policy | None = None,
    ) -> list[Costs]:
        """Run each strategy on the windows `which` (None: all), and return the results of each strategy."""
        chosen = np.arange(len(self.settings)) if which is None else which
        pairs = [(layers, int(k)) for layers in strategies for k in chosen]
        found = self.run_pairs(pairs, policy)
        firsts = range(0, len(pairs), chosen.size)
        return [found.rows(slice(first, first + chosen.size)) for first in firsts]

    def run_pairs(self, pairs: Sequence[tuple[Layers, int]], policy: Policy | None = None) -> Costs:
        """Run each (strategy, index of a window) pair, and return the results in the order of the pairs."""
        runs = [(int(self._pool_of[k]), layers, int(self._at[k])) for layers, k in pairs]
        found = self._runner.run(runs, policy or self._policy)
        numbers = [k for _, k in pairs]
        scored = None
        if not self.objective.is_default:
            scored = Scored(self.objective, found, self._offsets[numbers], self._weights[numbers])
        time_s, energy_j, work_s = (
            found[:, Term.TIME],
            found[:, Term.ENERGY],
            self._offsets[numbers, Term.TIME],
        )
        if not self.has_prices:
            return Costs(time_s, work_s, energy_j, scored=scored)
        money = np.where(self._is_priced[numbers], found[:, Term.MONEY], energy_j)
        return Costs(time_s, work_s, energy_j, money, found[:, Term.LATE], found[:, Term.URGENT], scored)


class Interval(msgspec.Struct, frozen=True):
    """Geometric mean of ratios over windows, with its 95 % bootstrap interval.

    Windows of a group (`Setting.group`) can have jobs in common, so the bootstrap draws groups.

    Attributes:
        ratio: The geometric mean; below 1 is better.
        low, high: Bounds of the interval.
        better_frac: Fraction of the windows with a ratio below 1.
        windows: Number of windows.
        groups: Number of groups.
    """

    ratio: float
    low: float
    high: float
    better_frac: float
    windows: int
    groups: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(log_ratios: Floats, groups: Sequence[str], *, seed: int = 0) -> Interval:
    """Return the geometric mean of n ratios, one per window, with its bootstrap interval.

    `log_ratios`: (n,) logarithms of the ratios. `groups`: name of each window's group (see `Interval`).
    """
    names, of = np.unique(np.asarray(groups), return_inverse=True)
    total, count = np.bincount(of, log_ratios), np.bincount(of)
    picks = np.random.default_rng(seed).integers(0, names.size, (_RESAMPLES, names.size))
    means = total[picks].sum(axis=1) / count[picks].sum(axis=1)
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return Interval(
        float(np.exp(log_ratios.mean())),
        float(low),
        float(high),
        float((log_ratios < 0.0).mean()),
        int(log_ratios.size),
        int(names.size),
    )
