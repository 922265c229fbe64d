"""One-step look-ahead from a live state: a few rows of the window, played on in the same sampled futures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.draws import generator
from rlsched.decide.rows.candidates import Window
from rlsched.decide.settings import Search as SearchSettings
from rlsched_agents.search.arrivals import Seen
from rlsched_agents.search.columns import SKIPPING, columns_of
from rlsched_agents.search.futures import imagine, some_of
from rlsched_agents.search.race import Budget, FixedSamples, TimeBudget, race
from rlsched_envs.sim.lookahead import Follower, Futures, LookAhead

STARTS: Final = 3
"""Jobs whose start is tried, each of another demand."""
ARRIVALS: Final = 64
"""Jobs that are imagined to come, once `MIN_SEEN` have been seen."""
MIN_SEEN: Final = 16
MAX_SPREAD: Final = 1.0
"""Median spread of the arrivals that were seen above which a network is not overruled: then the futures are
worth nothing. It is 0.4 to 0.7 where predictions carry information (rank correlation with the run time 0.75
to 0.95), and 1.3 to 2.7 on recorded traces (-0.2 to 0.3): docs/explanation/learning.md."""
_DRAWS: Final = 2  # the halves of a policy's decision draw as 0 and 1


class Found(NamedTuple):
    """What a search says.

    Attributes:
        row: Row of the window to take.
        samples: Futures that were played, 0 where there was no time or nothing to compare.
    """

    row: int
    samples: int


class Search:
    """Plays rows on, each in the same futures, with one rule to follow until every job has started.

    The row with the least mean queueing wins if it beats the first one by `race.MARGIN` standard errors.
    Futures are drawn from what the scheduler has seen (`imagine`), keyed by (seed, decision number). Other
    partitions are left out of them, and so are models of speed: what is imagined has whole GPUs of its own.
    A search belongs to one thread.

    Args:
        budget: How many futures a decision is worth.
        seed: Seed of the draws.
        max_spread: Median spread of what has come to a partition above which nothing is played there.
        follow: The rule, of the order of the states that it is asked about; `qssf-backfill`.
    """

    def __init__(
        self, budget: Budget, seed: int, max_spread: float = math.inf, follow: Follower = SKIPPING
    ) -> None:
        self.budget = budget
        self.max_spread = max_spread
        self.follow = follow
        self._seed = seed
        self._seen = Seen()
        self._copies = LookAhead()
        self._compiled = False

    def remember(self, state: ClusterState) -> None:
        """Take in what has come; to be called at every decision."""
        self._seen.remember(state)

    def best(
        self, state: ClusterState, partition: int, now_s: float, window: Window, rows: list[int]
    ) -> Found:
        """The best of these rows, the first unless another one is clearly better.

        Args:
            state: The state; it is left as it is.
            partition: The partition that is decided for.
            now_s: Now.
            window: Its jobs.
            rows: Legal rows; each starts a job that fits on free GPUs, or is *wait*.
        """
        if len(rows) < 2 or self._seen.of(partition).median_spread > self.max_spread:
            return Found(rows[0], 0)
        if self.budget.at_once == 0 and not self._compiled:
            self._race(state, partition, now_s, window, rows, FixedSamples(1))  # compiling is nobody's time
        self._compiled = True
        return self._race(state, partition, now_s, window, rows, self.budget)

    def _race(
        self,
        state: ClusterState,
        partition: int,
        now_s: float,
        window: Window,
        rows: list[int],
        budget: Budget,
    ) -> Found:
        budget.begin()
        seen = self._seen.of(partition)
        arrivals = ARRIVALS if seen.count >= MIN_SEEN else 0
        columns = columns_of(
            self._copies, state, partition, now_s, window, rows, arrivals, follow=self.follow
        )
        drawn: list[Futures] = []  # those from sample `drawn_from` on
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
            for one in some:  # how long it takes is not known yet
                if budget.is_up():
                    return None
                found.append(columns.costs(np.array([one]), futures))
            return np.concatenate(found, axis=1)

        raced = race(play, len(rows), budget)
        return Found(rows[raced.best], raced.samples)


def starts_to_try(state: ClusterState, window: Window, order: Iterable[int]) -> list[int]:
    """The first `STARTS` of these rows that start a job on free GPUs, each of another demand."""
    demands: dict[int, int] = {}
    for row in order:
        if row > 0 and window.legal[row] and window.arrays.partner[row] < 0 and len(demands) < STARTS:
            demands.setdefault(int(state.arrays.job.demand[window.arrays.slot[row]]), row)
    return list(demands.values())


def rows_of_network(
    state: ClusterState, window: Window, logits: NDArray[np.float64], choice: int
) -> list[int]:
    """What a network proposes: its choice, the likeliest starts, the reference's row, *wait*.

    Its choice alone where that shares the GPUs of a running job, which look-ahead knows nothing of.
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
    """What a policy's settings ask for; None for no time at all."""
    if search.samples:
        return FixedSamples(search.samples)
    return TimeBudget(search.time_ms) if search.time_ms > 0 else None
