"""`rollout`: sampled look-ahead over `qssf-backfill`. It asks of each action what would come of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import NEXT_SEQ, RUNNING, SLOT_EMPTY
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.candidates import (
    Window,
    contested,
    first_in_order,
    job_candidates,
    start_action,
)
from rlsched.decide.draws import generator
from rlsched.decide.record import Source
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Decision, Information, Order
from rlsched.errors import UnknownSchedulerError
from rlsched_envs.lookahead import WAIT, Futures, LookAhead

SAMPLES: Final = 8
STARTS: Final = 3
"""Jobs whose start is tried, each of another demand: the reference rule's, and the next in the window."""
ARRIVALS: Final = 64
"""Jobs that are imagined to come, once `MIN_SEEN` have been seen."""
MIN_SEEN: Final = 16
MEMORY: Final = 512
"""Latest arrivals that imagined ones are drawn from; their rate is that of the latest `RATE_OVER`."""
RATE_OVER: Final = 128
MARGIN: Final = 2.0
"""Standard errors of the mean difference by which an action has to be better than the reference's."""
MAX_SIGMA: Final = 3.0
MIN_SPREAD: Final = 0.1
_DRAWS: Final = 2  # the halves of a policy's decision draw as 0 and 1
_STANDARD: Final = NormalDist()


class Rollout:
    """One-step look-ahead with sampled futures (a rollout policy: Bertsekas, Tsitsiklis and Wu, 1997).

    At a contested decision it tries the reference's start, the starts of other demands, and *wait* where that
    is legal. For each of `samples` futures, the same for every action, `qssf-backfill` runs on from there
    until every job has started; the action with the least mean queueing wins if it beats the reference's by
    `MARGIN` standard errors. A future has run times drawn from lognormals about the predictions (a running
    job's given how long it has run), and arrivals like those seen lately: their rate, Poisson, and their
    sizes and predictions, drawn with replacement.

    It knows only `ClusterState`, and the arrivals that it has seen there: it remembers `MEMORY` of them a
    partition, which a restarted one has to see again. Other partitions are left out of the futures.
    """

    order: Order = "predicted_gpu_time"
    information: Information = "causal"

    def __init__(self, samples: int = SAMPLES, seed: int = 0, *, name: str = "rollout") -> None:
        self.name: str = name
        self._samples, self._seed = samples, seed
        self._next_seq = 0
        self._seen: dict[int, _Arrivals] = {}
        self._copies = LookAhead()

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The start or the *wait* that the futures speak for."""
        recording = Recording(state, partition, now_s, wanted=record)
        self._remember(state)
        source: Source = "automatic"
        halves = []
        action: Action
        if not contested(state, partition):
            action = start_action(state, partition, first_in_order(state, partition, now_s))
        else:
            window = job_candidates(state, partition, now_s)
            row = int(np.argmax(window.legal))
            if np.count_nonzero(window.legal) > 1:
                source = "rule"
                row = self._choose(state, partition, now_s, window)
                halves = [window.half(None, row)] if record else []
            action = start_action(state, partition, int(window.seqs[row])) if row > 0 else Wait()
        return recording.decision(
            action, source, self.name, halves=halves, marks_hold=isinstance(action, Wait)
        )

    def _remember(self, state: ClusterState) -> None:
        """Keep the jobs that have come since the last decision; all of them are still live now."""
        next_seq = int(state.arrays.counters[NEXT_SEQ])
        if next_seq < self._next_seq:
            self._next_seq, self._seen = 0, {}
        if next_seq == self._next_seq:
            return
        job = state.arrays.job.view(np.ndarray)
        fresh = np.flatnonzero((job["seq"] >= self._next_seq) & (job["status"] != SLOT_EMPTY))
        for slot in fresh[np.argsort(job["seq"][fresh])].tolist():
            for partition in (int(job["own_partition"][slot]), int(job["shared_partition"][slot])):
                if partition >= 0:
                    self._seen.setdefault(partition, _Arrivals()).add(job[slot])
        self._next_seq = next_seq

    def _choose(self, state: ClusterState, partition: int, now_s: float, window: Window) -> int:
        """Row of the best action."""
        rows = candidate_rows(state, window)
        seen = self._seen.setdefault(partition, _Arrivals())
        arrivals = ARRIVALS if seen.count >= MIN_SEEN else 0
        self._copies.take(state, partition, arrivals, now_s, also=window.arrays.slot)
        copy_of = np.full(len(state.arrays.job), -1, np.int32)
        copy_of[self._copies.slots] = np.arange(len(self._copies.slots))
        offered = window.arrays.slot[: len(window.seqs)]
        blocked = int(window.arrays.info[2])
        actions = np.array([copy_of[offered[row]] if row > 0 else WAIT for row in rows], np.int32)
        held = copy_of[offered[1:][window.legal[1:]]]
        waits_for = int(copy_of[blocked]) if blocked >= 0 else -1
        futures = self._imagine(state, self._copies.slots, seen, arrivals, now_s)

        def costs_of(some: NDArray[np.intp], part: slice) -> NDArray[np.float64]:
            return self._copies.costs(partition, actions[some], held, waits_for, some_of(futures, part))

        return rows[race(costs_of, len(rows), self._samples)]

    def _imagine(
        self, state: ClusterState, slots: NDArray[np.int32], seen: _Arrivals, arrivals: int, now_s: float
    ) -> Futures:
        """Draw run times, ends and arrivals; the same for every action, keyed by (seed, decision number)."""
        draws = generator(self._seed, state.decisions, _DRAWS)
        job = state.arrays.job.view(np.ndarray)[slots]
        shape = (self._samples, arrivals)
        marks = seen.ring[draws.integers(0, max(seen.count, 1), shape)]
        gap_s = seen.mean_gap_s(now_s) if arrivals else 0.0
        submit_s = now_s + np.cumsum(draws.exponential(gap_s, shape), axis=1)
        normal = draws.standard_normal((self._samples, len(slots)))
        run_s = np.fmin(draw_run_times(normal, job["predicted_s"], job["spread"]), job["limit_s"])
        end_s = np.full((self._samples, len(slots)), math.nan)
        tails = draws.random((self._samples, len(slots)))
        for k in np.flatnonzero(job["status"] == RUNNING).tolist():
            ran_s = now_s - float(job["start_s"][k])
            for sample in range(self._samples):
                left_s = draw_time_left(
                    float(tails[sample, k]), ran_s, float(job["predicted_s"][k]), float(job["spread"][k])
                )
                end_s[sample, k] = now_s + left_s
        coming_s = draw_run_times(draws.standard_normal(shape), marks["predicted_s"], marks["spread"])
        return Futures(
            duration_s=np.concatenate([run_s, coming_s], axis=1),
            end_s=end_s,
            submit_s=submit_s,
            demand=np.ascontiguousarray(marks["demand"]),
            predicted_s=np.ascontiguousarray(marks["predicted_s"]),
            spread=np.ascontiguousarray(marks["spread"]),
        )


class _Arrivals:
    """The latest `MEMORY` arrivals of a partition, in a ring.

    Attributes:
        ring: (MEMORY,) the first `count` entries are in use.
    """

    _MARK: Final = np.dtype(
        [("submit_s", np.float64), ("predicted_s", np.float64), ("spread", np.float64), ("demand", np.int32)]
    )

    def __init__(self) -> None:
        self.ring = np.zeros(MEMORY, self._MARK)
        self._total = 0

    @property
    def count(self) -> int:
        """How many are remembered."""
        return min(self._total, MEMORY)

    def add(self, job: np.void) -> None:
        """One more job has come."""
        names = self._MARK.names or ()
        self.ring[self._total % MEMORY] = tuple(job[name] for name in names)
        self._total += 1

    def mean_gap_s(self, now_s: float) -> float:
        """Mean time between the latest arrivals, up to now."""
        over = min(self.count, RATE_OVER)
        since_s = float(self.ring[(self._total - over) % MEMORY]["submit_s"])
        return max(now_s - since_s, 0.0) / over


def some_of(futures: Futures, samples: slice) -> Futures:
    """Some of the samples."""
    return Futures(
        futures.duration_s[samples],
        futures.end_s[samples],
        futures.submit_s[samples],
        futures.demand[samples],
        futures.predicted_s[samples],
        futures.spread[samples],
    )


def candidate_rows(state: ClusterState, window: Window) -> list[int]:
    """Rows to try: the reference's, legal jobs that ask for something else in the window's order, *wait*."""
    demands: dict[int, int] = {}
    legal = np.flatnonzero(window.legal)
    first = window.reference if window.reference > 0 and window.legal[window.reference] else -1
    for row in [first, *legal.tolist()]:
        if row > 0 and len(demands) < STARTS:
            demands.setdefault(int(state.arrays.job.demand[window.arrays.slot[row]]), row)
    return list(demands.values()) + ([0] if window.legal[0] else [])


def race(
    costs_of: Callable[[NDArray[np.intp], slice], NDArray[np.float64]], actions: int, samples: int
) -> int:
    """The best action; those that are no better than the first after half of the samples drop out.

    Args:
        costs_of: (samples, actions) costs of some actions in a slice of the samples.
        actions: How many there are; the first one is the reference.
        samples: How many futures there are.
    """
    half = (samples + 1) // 2
    costs = costs_of(np.arange(actions), slice(0, half))
    left = np.flatnonzero(costs.mean(axis=0) < costs[:, 0].mean())
    if len(left) == 0:
        return 0
    left = np.concatenate([[0], left])
    if half < samples:
        more = costs_of(left, slice(half, samples))
        return int(left[best_action(np.concatenate([costs[:, left], more]))])
    return int(left[best_action(costs[:, left])])


def best_action(costs: NDArray[np.float64]) -> int:
    """Column of the least mean cost, the first one (the reference) unless another is clearly better.

    Args:
        costs: (S, K) of S samples that all columns share.
    """
    gain = costs[:, :1] - costs
    error = gain.std(axis=0, ddof=1) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
    mean = gain.mean(axis=0)
    return int(np.argmax(np.where(mean > MARGIN * error, mean, 0.0)))


def draw_run_times(
    normal: NDArray[np.float64], predicted_s: NDArray[np.float64], spread: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lognormal run times: ln(run time / predicted) has mean 0 and standard deviation `spread`, seconds."""
    bounded = np.clip(normal, -MAX_SIGMA, MAX_SIGMA)
    return np.maximum(predicted_s, 1.0) * np.exp(np.maximum(spread, MIN_SPREAD) * bounded)


def draw_time_left(tail: float, ran_s: float, predicted_s: float, spread: float) -> float:
    """What is left of a lognormal run time, given that it is above `ran_s`, seconds.

    Args:
        tail: Uniform in [0, 1): the share of the tail above the drawn value is 1 - tail.
        ran_s: Time it has run.
        predicted_s: Its median.
        spread: Standard deviation of the logarithm.
    """
    spread, predicted_s = max(spread, MIN_SPREAD), max(predicted_s, 1.0)
    share = 1.0 - tail
    z = math.log(ran_s / predicted_s) / spread if ran_s > 0 else -math.inf
    if z > MAX_SIGMA:  # far out, a normal's tail falls as exp(-z^2 / 2)
        drawn = math.sqrt(z * z - 2.0 * math.log(share))
    else:
        above = 0.5 * math.erfc(z / math.sqrt(2.0)) * share
        drawn = -_STANDARD.inv_cdf(min(max(above, 1e-300), 1.0 - 1e-16))
    return max(predicted_s * math.exp(spread * min(drawn, max(MAX_SIGMA, z + 1.0))) - ran_s, 1.0)


def make_rollout(argument: str, seed: int) -> Rollout:
    """Entry point of `rollout` and `rollout:SAMPLES`.

    Raises:
        UnknownSchedulerError: SAMPLES is no number of samples.
    """
    if not argument:
        return Rollout(seed=seed)
    if not argument.isdecimal() or not 1 <= int(argument) <= 1000:
        raise UnknownSchedulerError(f"policy 'rollout:SAMPLES': expected 1 to 1000 samples, got {argument!r}")
    return Rollout(int(argument), seed, name=f"rollout:{argument}")
