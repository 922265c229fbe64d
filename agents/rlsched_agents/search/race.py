"""The race of actions in the same futures, and how many: a number of them, or what fits a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MARGIN: Final = 2.0
"""Standard errors of the mean difference by which an action has to be better than the first."""
CLEAR: Final = 4.0
"""Standard errors at which a timed race is over before its time."""
FEWEST: Final = 4
"""Samples that a timed race has to have played before anything drops out, or wins."""
MOST: Final = 256
"""Samples of a timed race, at most."""

Play = Callable[[NDArray[np.intp], slice], NDArray[np.float64] | None]
"""(S, K) costs of some actions in a slice of the samples; None where the time was up before."""


class Raced(NamedTuple):
    """How a race ended.

    Attributes:
        best: The action that won; 0, the first, unless another one is clearly better.
        samples: Futures in which actions were played.
    """

    best: int
    samples: int


class Budget(Protocol):
    """How many futures a race is run in.

    Attributes:
        at_once: Samples that are drawn together with the first ones.
        fewest: Samples before which no action drops out, and none but the first can win.
        clear: Standard errors by which an action may win before all samples are played.
    """

    at_once: int
    fewest: int
    clear: float

    def begin(self) -> None:
        """A decision begins."""

    def more(self, played: int, actions: int) -> int:
        """Samples to play next, 0 for none.

        Args:
            played: Those that were played.
            actions: Actions that are left in the race.
        """

    def is_up(self) -> bool:
        """Whether nothing more may be begun."""


class FixedSamples:
    """So many samples, in two halves: the same in every run."""

    fewest: int = 1
    clear: float = math.inf

    def __init__(self, samples: int) -> None:
        self.at_once: int = samples

    def begin(self) -> None:
        """Nothing to do."""

    def more(self, played: int, actions: int) -> int:  # noqa: ARG002
        """Half of them, then the others."""
        return (self.at_once + 1) // 2 if played == 0 else self.at_once - played

    def is_up(self) -> bool:
        """Never."""
        return False


class TimeBudget:
    """As many samples as can be played in a time, in growing numbers; what comes out depends on the machine.

    Args:
        budget_ms: The time, milliseconds. What has been begun is played to its end: one action in one future
            where no time of it is known yet.
        clock: Seconds.
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
        """The time runs from now on."""
        self._began_s = self._clock()
        self._plays = 0

    def more(self, played: int, actions: int) -> int:
        """One, those up to `FEWEST`, then as many again, as far as the latest pace lets them end in time."""
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
        """Whether the time is over."""
        return self._clock() - self._began_s >= self.budget_ms / 1e3


def race(play: Play, actions: int, budget: Budget) -> Raced:
    """The best action; those that are no better than the first after a round of samples drop out.

    Args:
        play: Plays some actions in some samples.
        actions: How many there are; the first one is what is done if nothing is clearly better.
        budget: How many samples are played.
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


def best_action(costs: NDArray[np.float64], margin: float = MARGIN) -> int:
    """Column of the least mean cost, the first one (the reference) unless another is clearly better.

    Args:
        costs: (S, K) of S samples that all columns share.
        margin: Standard errors of the mean difference by which it has to be better.
    """
    gain = costs[:, :1] - costs
    error = gain.std(axis=0, ddof=1) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
    mean = gain.mean(axis=0)
    return int(np.argmax(np.where(mean > margin * error, mean, 0.0)))
