"""A race of actions in shared futures, which ends after a fixed number of futures or a time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MIN_ERRORS: Final = 2.0
"""Number of standard errors of the mean difference by which an action must beat the first action."""
CLEAR: Final = 4.0
"""Number of standard errors at which a timed race ends early."""
FEWEST: Final = 4
"""Minimum number of samples in a timed race before an action can win or be dropped."""
MOST: Final = 256
"""Maximum number of samples in a timed race."""

Play = Callable[[NDArray[np.intp], slice], NDArray[np.float64] | None]
"""(S, K) costs of some actions in a slice of the samples; None if the time ran out first."""


class Raced(NamedTuple):
    """The result of a race.

    Attributes:
        best: Number of the winning action: 0 (the first action) unless another action is clearly better.
        samples: Number of futures that were simulated.
    """

    best: int
    samples: int


class Budget(Protocol):
    """Rule that limits the number of futures of a race.

    Attributes:
        at_once: Number of samples drawn in the first batch.
        fewest: Number of samples before which no action is dropped, and only the first action can win.
        clear: Number of standard errors with which an action can win before all samples are used.
    """

    at_once: int
    fewest: int
    clear: float

    def begin(self) -> None:
        """Start a decision."""

    def more(self, played: int, actions: int) -> int:
        """Return the number of samples to simulate next, 0 for none.

        Args:
            played: Number of samples so far.
            actions: Number of actions left in the race.
        """

    def is_up(self) -> bool:
        """Return whether the budget is used up."""


class FixedSamples:
    """A fixed number of samples, simulated in two halves; each run gives the same result."""

    fewest: int = 1
    clear: float = math.inf

    def __init__(self, samples: int) -> None:
        self.at_once: int = samples

    def begin(self) -> None:
        """Do nothing."""

    def more(self, played: int, actions: int) -> int:  # noqa: ARG002
        """Return half of the samples, then the rest."""
        return (self.at_once + 1) // 2 if played == 0 else self.at_once - played

    def is_up(self) -> bool:
        """Return False."""
        return False


class TimeBudget:
    """As many samples as fit a time, in growing batches; results depend on the machine's speed.

    Args:
        budget_ms: The time, milliseconds. A started batch is finished. While the duration of a simulation is
            not known yet, a batch is one action in one future.
        clock: Returns the time in seconds.
    """

    at_once: int = 0
    fewest: int = FEWEST
    clear: float = CLEAR

    def __init__(self, budget_ms: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget_ms = budget_ms
        self._clock = clock
        self._began_s = self._asked_s = 0.0
        self._plays = 0

    def begin(self) -> None:
        """Start the time budget."""
        self._began_s = self._clock()
        self._plays = 0

    def more(self, played: int, actions: int) -> int:
        """Return 1, then up to `FEWEST`, then double the number, as far as the latest pace allows."""
        now_s = self._clock()
        left_s = self._began_s + self.budget_ms / 1e3 - now_s
        if left_s <= 0 or played >= MOST:
            return 0
        wanted = 1
        if played:
            each_s = (now_s - self._asked_s) / self._plays
            fitting = int(left_s / (each_s * actions)) if each_s > 0 else MOST
            wanted = min(FEWEST - played if played < FEWEST else played, fitting, MOST - played)
        self._asked_s, self._plays = now_s, max(wanted, 1) * actions
        return wanted

    def is_up(self) -> bool:
        """Return whether the time budget is used up."""
        return self._clock() - self._began_s >= self.budget_ms / 1e3


def race(play: Play, actions: int, budget: Budget) -> Raced:
    """Return the best action; after a round of samples, actions that do not beat the first are dropped.

    Args:
        play: Simulates some actions in some samples.
        actions: Number of actions; the first action is the default if no other is clearly better.
        budget: Number of samples.
    """
    left = np.arange(actions)
    costs = np.empty((0, actions))
    while count := budget.more(len(costs), len(left)):
        new = play(left, slice(len(costs), len(costs) + count))
        if new is None:
            break
        costs = np.concatenate([costs, new])
        if len(costs) < budget.fewest:
            continue
        better = np.flatnonzero(costs.mean(axis=0) < costs[:, 0].mean())
        if len(better) == 0:
            return Raced(0, len(costs))
        kept = np.concatenate([[0], better])
        left, costs = left[kept], costs[:, kept]
        if budget.clear < math.inf and best_action(costs, budget.clear) > 0:
            break
    if len(costs) < budget.fewest:
        return Raced(0, len(costs))
    return Raced(int(left[best_action(costs)]), len(costs))


def best_action(costs: NDArray[np.float64], min_errors: float = MIN_ERRORS) -> int:
    """Return the column of the least mean cost, or the first (the reference) if none is clearly better.

    Args:
        costs: (S, K) costs in S samples shared by all columns.
        min_errors: Number of standard errors of the mean difference by which a column must be better.
    """
    gain = costs[:, :1] - costs
    error = gain.std(axis=0, ddof=1) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
    mean = gain.mean(axis=0)
    return int(np.argmax(np.where(mean > min_errors * error, mean, 0.0)))
