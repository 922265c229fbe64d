"""Jobs are not held: Slurm starts them where it likes, in the order of the broker's queue.

A waiting job gets a `Nice` by its place in that queue, and Slurm's backfill does the rest. What Slurm starts
is said to the broker (`Begin`), which follows it as it does what it starts itself, and learns from its end.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts, SlurmJob
from rlsched.engine.offers import Offers
from rlsched.engine.steps import Ask
from rlsched.errors import InputError
from rlsched.wire.messages import Begin

_log = logging.getLogger("rlsched.engine")
TRIES = 4
"""So often a start is told that the broker refuses; then the job is Slurm's own."""
MOST_WRITES = 200
"""At one look; the first in the queue come first."""
NICES = {"priority/basic": (-60_000, -1_000), "priority/multifactor": (-1_000_000_000, -1_000_000)}
"""By PriorityType: below 0, so that jobs without one of ours wait behind. Basic ones begin at 4294901760, and
more than 2**32 is none; those of many factors are sums of weights, of which an order has to be more."""


def nices_of(config: dict[str, str]) -> tuple[int, int]:
    """The nices that fit a Slurm's priorities.

    Raises:
        InputError: its PriorityType is another one.
    """
    kind = config.get("PriorityType", "priority/basic")
    if kind not in NICES:
        raise InputError(
            f"--priority-only: PriorityType of this Slurm is {kind}: expected {' or '.join(NICES)}"
        )
    return NICES[kind]


class Ordering:
    """Gives waiting jobs their nices, and tells of what Slurm has started.

    Args:
        desk: The gateway's.
        nices: Between these.
    """

    def __init__(self, desk: Desk, nices: tuple[int, int]) -> None:
        self._desk, self._nices = desk, nices
        self._said_s: dict[str, float] = {}
        self._since_s: float | None = None
        self._refusals: Counter[str] = Counter()

    def look(self, facts: Facts, offers: Offers, *, is_deciding: bool) -> None:
        """Mark what is new, tell of what began, and write what waits in another order."""
        self._since_s = facts.now_s if self._since_s is None else self._since_s
        self._desk.starting = {job.key for job in facts.jobs.values() if self._is_starting(job)}
        if is_deciding:
            for job in facts.jobs.values():
                if self._is_new(job, facts.now_s):
                    self._desk.starting |= {job.key} if job.runs else set()
                    marks = {"g": str(job.gpus_asked), "s": f"{int(job.submit_s):x}", "v": str(job.nice)}
                    self._desk.writer.mark(job.key, marks)
        self._order(facts, offers)

    def _is_new(self, job: SlurmJob, now_s: float) -> bool:
        return (
            job.marks is None
            and not job.is_commented
            and job.partition in self._desk.partitions
            and job.gpus_asked > 0
            and (self._waits(job, now_s) or (job.runs and job.start_s >= (self._since_s or 0.0)))
        )

    def _waits(self, job: SlurmJob, now_s: float) -> bool:
        return self._desk.waits(job) and not job.depends and job.eligible_s <= now_s

    def _is_starting(self, job: SlurmJob) -> bool:
        return job.runs and self._desk.is_ours(job) and self._refusals[job.key] < TRIES

    def refused(self, key: str, why: str, offers: Offers) -> None:
        """The broker does not take a start; it may have to hear of another job's end first."""
        self._refusals[key] += 1
        if self._refusals[key] == TRIES:
            _log.warning("Slurm's job %s is Slurm's own: the broker does not take its start: %s", key, why)
            offers.withdraw(key)

    def begin(self, facts: Facts, offers: Offers) -> None:
        """Tell of what Slurm has started, after the broker was told whose GPUs are free again."""
        at_work, found = self._desk.at_work(), set[str]()
        for offer in offers.offered():
            job = facts.jobs.get(offer.key)
            is_same = job is not None and (job.marks or {}).get("s") == offer.stamp
            if job is None or offer.job is None or not is_same or not job.runs or offer.key in at_work:
                continue
            if not job.gpus or not all(job.gpus):
                continue  # it is ending: Slurm does not say any more which GPUs it had
            found.add(offer.key)
            if facts.now_s - self._said_s.get(offer.key, -1e9) >= self._desk.times.repeat_s:
                self._said_s[offer.key] = facts.now_s
                begin = Begin(job=offer.job, nodes=job.nodes, gpus=job.gpus)
                self._desk.out.append(Ask(("begin", offer.key), begin))
        self._said_s = {key: at_s for key, at_s in self._said_s.items() if key in found}

    def _order(self, facts: Facts, offers: Offers) -> None:
        low, high = self._nices
        waiting: list[tuple[float, int, SlurmJob]] = []
        for offer in offers.offered():
            job, number = facts.jobs.get(offer.key), offer.job
            if job is not None and number in offers.queue_keys and self._desk.waits(job):
                waiting.append((offers.queue_keys[number], number, job))
        waiting.sort(key=lambda one: one[:2])
        jobs = [job for _, _, job in waiting]
        nices = [job.nice if low <= job.nice <= high else None for job in jobs]
        changed = [
            (job, nice) for job, nice in zip(jobs, spaced(nices, low, high), strict=True) if job.nice != nice
        ]
        for job, nice in changed[:MOST_WRITES]:
            self._desk.writer.order(job.key, nice)


def spaced(nices: Sequence[int | None], low: int, high: int) -> list[int]:
    """Ascending nices within [low, high], as few of them changed as can be where there is room between.

    Args:
        nices: As they are, in the order that they are to have; None: it has none yet.
        low: The lowest ...
        high: ... and the highest.
    """
    kept = _ascending(nices)
    step = max(1, (high - low) // 1_000)
    found = list(nices)
    edges = [-1, *kept, len(nices)]
    for left, right in pairwise(edges):
        count = right - left - 1
        if not count:
            continue
        least = nices[left] if left >= 0 else None
        most = nices[right] if right < len(nices) else None
        if least is None and most is None:
            least = (low + high) // 2
        if most is None:
            assert least is not None
            apart = min(step, (high - least) // count)
            values = [least + apart * (k + 1) for k in range(count)]
        elif least is None:
            apart = min(step, (most - low) // count)
            values = [most - apart * (count - k) for k in range(count)]
        else:
            apart = (most - least) // (count + 1)
            values = [least + apart * (k + 1) for k in range(count)]
        if apart < 1:
            apart = max(1, (high - low) // (len(nices) + 1))
            return [min(high, low + apart * (k + 1)) for k in range(len(nices))]
        found[left + 1 : right] = values
    return [nice for nice in found if nice is not None]


def _ascending(nices: Sequence[int | None]) -> list[int]:
    """Places of a longest strictly ascending subsequence."""
    tails, ends, before = list[int](), list[int](), dict[int, int]()
    for place, nice in enumerate(nices):
        if nice is None:
            continue
        at = bisect_left(tails, nice)
        before[place] = ends[at - 1] if at else -1
        tails[at : at + 1], ends[at : at + 1] = [nice], [place]
    found, place = list[int](), ends[-1] if ends else -1
    while place >= 0:
        found.append(place)
        place = before[place]
    return found[::-1]
