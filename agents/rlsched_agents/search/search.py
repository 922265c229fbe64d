"""One-step look-ahead from a live state: simulates some rows of the window in the same sampled futures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.draws import generator
from rlsched.decide.rows.candidates import CandidateRows
from rlsched.decide.settings import SearchSettings
from rlsched_agents.search.arrivals import Seen
from rlsched_agents.search.columns import SKIPPING, columns_of
from rlsched_agents.search.futures import imagine, some_of
from rlsched_agents.search.race import Budget, FixedSamples, TimeBudget, race
from rlsched_envs.sim.lookahead import FollowedRule, Futures, LookAhead

STARTS: Final = 3
"""Number of jobs whose start is evaluated; each job has another demand."""
ARRIVALS: Final = 64
"""Number of sampled arrivals, once `MIN_SEEN` arrivals have been seen."""
MIN_SEEN: Final = 16
MAX_SPREAD: Final = 1.0
"""Limit of the median spread of recent arrivals. Above this limit the search does not overrule a network,
because the futures are not informative. The median spread is 0.4 to 0.7 if predictions are good (rank
correlation with the run time 0.75 to 0.95), and 1.3 to 2.7 on recorded traces (-0.2 to 0.3):
docs/explanation/learning.md.
"""
_DRAWS: Final = 2  # the halves of a policy's decision draw with 0 and 1


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        row: Row of the window to take.
        samples: Number of simulated futures, 0 if there was no time or nothing to compare.
    """

    row: int
    samples: int


class RowSearch:
    """Simulates rows in the same futures; one rule continues after each row until all jobs have started.

    The row with the least mean queueing wins if it beats the first row by `race.MIN_ERRORS` standard errors.
    Futures are drawn from the jobs that the scheduler has seen (`imagine`), keyed by (seed, decision number).
    Futures include neither other partitions nor models of speed: sampled jobs get whole GPUs of their own.
    Only one thread can use a search.

    Args:
        budget: Number of futures per decision.
        seed: Seed of the draws.
        max_spread: Median spread of the arrivals of a partition above which the search is skipped.
        follow: Rule that continues, in the order of the given states; default: `qssf-backfill`.
    """

    def __init__(
        self, budget: Budget, seed: int, max_spread: float = math.inf, follow: FollowedRule = SKIPPING
    ) -> None:
        self.budget = budget
        self.max_spread = max_spread
        self.follow = follow
        self._seed = seed
        self._seen = Seen()
        self._copies = LookAhead()
        self._compiled = False

    def remember(self, state: ClusterState) -> None:
        """Record new arrivals; call it at each decision."""
        self._seen.remember(state)

    def best(
        self, state: ClusterState, partition: int, now_s: float, window: CandidateRows, rows: list[int]
    ) -> Found:
        """Return the best of these rows: the first row unless another row is clearly better.

        Args:
            state: The state; unchanged.
            partition: Partition of the decision.
            now_s: Current time, seconds.
            window: Jobs of the partition.
            rows: Legal rows; each starts a job that fits on free GPUs, or is *wait*.
        """
        if len(rows) < 2 or self._seen.arrivals_of(partition).median_spread > self.max_spread:
            return Found(rows[0], 0)
        if self.budget.at_once == 0 and not self._compiled:
            self._race(state, partition, now_s, window, rows, FixedSamples(1))  # compiles, untimed
        self._compiled = True
        return self._race(state, partition, now_s, window, rows, self.budget)

    def _race(
        self,
        state: ClusterState,
        partition: int,
        now_s: float,
        window: CandidateRows,
        rows: list[int],
        budget: Budget,
    ) -> Found:
        budget.begin()
        seen = self._seen.arrivals_of(partition)
        arrivals = ARRIVALS if seen.count >= MIN_SEEN else 0
        columns = columns_of(
            self._copies, state, partition, now_s, window, rows, arrivals, follow=self.follow
        )
        drawn: list[Futures] = []  # samples from `drawn_from` on
        drawn_from = drawn_to = 0

        def futures_of(part: slice) -> Futures:
            nonlocal drawn_from, drawn_to
            if part.stop > drawn_to:
                drawn_from = part.start
                count = max(budget.at_once, part.stop - part.start)
                drawn_to = drawn_from + count
                draws = generator(self._seed, state.decisions, _DRAWS + drawn_from)
                drawn[:] = [imagine(draws, count, state, self._copies.slots, seen, arrivals, now_s)]
            return some_of(drawn[0], slice(part.start - drawn_from, part.stop - drawn_from))

        def play(some: NDArray[np.intp], part: slice) -> NDArray[np.float64] | None:
            futures = futures_of(part)
            if part.start > 0 or budget.at_once > 0:
                return columns.costs(some, futures)
            found = []
            for one in some:  # their duration is not known yet
                if budget.is_up():
                    return None
                found.append(columns.costs(np.array([one]), futures))
            return np.concatenate(found, axis=1)

        raced = race(play, len(rows), budget)
        return Found(rows[raced.best], raced.samples)


def starts_to_try(state: ClusterState, window: CandidateRows, order: Iterable[int]) -> list[int]:
    """Return the first `STARTS` of these rows that start a job on free GPUs, each with another demand."""
    demands: dict[int, int] = {}
    for row in order:
        if row > 0 and window.legal[row] and window.arrays.partner[row] < 0 and len(demands) < STARTS:
            demands.setdefault(int(state.arrays.job.demand[window.arrays.slot[row]]), row)
    return list(demands.values())


def rows_of_network(
    state: ClusterState, window: CandidateRows, logits: NDArray[np.float64], choice: int
) -> list[int]:
    """Return the candidates of a network: its choice, the likeliest starts, the reference's row, *wait*.

    If its choice shares the GPUs of a running job, return only this choice: look-ahead does not support
    sharing.
    """
    if window.arrays.partner[choice] >= 0:
        return [choice]
    likeliest = np.argsort(-logits, kind="stable").tolist()
    rows = [choice, *starts_to_try(state, window, [choice, *likeliest])]
    rows += starts_to_try(state, window, [window.reference])
    if window.legal[0]:
        rows.append(0)
    return list(dict.fromkeys(rows))


def budget_of(search: SearchSettings) -> Budget | None:
    """Return the budget in a policy's settings; None for no search."""
    if search.samples:
        return FixedSamples(search.samples)
    return TimeBudget(search.time_ms) if search.time_ms > 0 else None
