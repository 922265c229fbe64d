"""Orders jobs without holding them: Slurm places and starts the jobs in the order of the broker's queue.

A waiting job gets a `Nice` according to its position in that queue. When Slurm starts a job, the gateway
reports the start to the broker (`Begin`). The broker then follows the job as if the broker had started it.
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
"""If the broker has refused to record a start by Slurm this number of times, the job is left to Slurm."""
MOST_WRITES = 200
"""Maximum number of jobs whose nice is changed per poll. Jobs at the front of the queue come first."""
NICES = {"priority/basic": (-60_000, -1_000), "priority/multifactor": (-1_000_000_000, -1_000_000)}
"""Range of nices by PriorityType; negative, so that jobs without a nice from rlsched start later.

Basic priorities begin at 4294901760, and must stay below 2**32. Multifactor nices must be larger in magnitude
than the priorities, which are sums of weights.
"""


def nices_of(config: dict[str, str]) -> tuple[int, int]:
    """Return (lowest, highest) nice for Slurm's PriorityType.

    Raises:
        InputError: the PriorityType is not known.
    """
    kind = config.get("PriorityType", "priority/basic")
    if kind not in NICES:
        raise InputError(
            f"--priority-only: PriorityType of this Slurm is {kind}: expected {' or '.join(NICES)}"
        )
    return NICES[kind]


class Ordering:
    """Sets the nices of waiting jobs, and reports jobs that Slurm has started.

    Args:
        desk: State that the parts of the gateway share.
        nices: Lowest and highest nice.
    """

    def __init__(self, desk: Desk, nices: tuple[int, int]) -> None:
        self._desk, self._nices = desk, nices
        self._said_s: dict[str, float] = {}
        self._since_s: float | None = None
        self._refusals: Counter[str] = Counter()

    def update_order(self, facts: Facts, offers: Offers, *, is_deciding: bool) -> None:
        """Mark new jobs, find jobs that Slurm has started, and set the nices that the queue requires."""
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

    def handle_refusal(self, key: str, why: str, offers: Offers) -> None:
        """Count the broker's refusals to record a job's start by Slurm; withdraw the job after `TRIES`."""
        self._refusals[key] += 1
        if self._refusals[key] == TRIES:
            _log.warning("Slurm's job %s is left to Slurm: the broker rejected its start: %s", key, why)
            offers.withdraw(key)

    def begin(self, facts: Facts, offers: Offers) -> None:
        """Report to the broker the jobs that Slurm has started.

        The caller must first report the GPUs that other jobs use.
        """
        at_work, found = self._desk.at_work(), set[str]()
        for offer in offers.accepted_offers():
            job = facts.jobs.get(offer.key)
            is_same = job is not None and (job.marks or {}).get("s") == offer.stamp
            if job is None or offer.job is None or not is_same or not job.runs or offer.key in at_work:
                continue
            if not job.gpus or not all(job.gpus):
                continue  # the job is ending, and Slurm no longer reports its GPUs
            found.add(offer.key)
            if facts.now_s - self._said_s.get(offer.key, -1e9) >= self._desk.times.repeat_s:
                self._said_s[offer.key] = facts.now_s
                begin = Begin(job=offer.job, nodes=job.nodes, gpus=job.gpus)
                self._desk.out.append(Ask(("begin", offer.key), begin))
        self._said_s = {key: at_s for key, at_s in self._said_s.items() if key in found}

    def _order(self, facts: Facts, offers: Offers) -> None:
        low, high = self._nices
        waiting: list[tuple[float, int, SlurmJob]] = []
        for offer in offers.accepted_offers():
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
    """Return an ascending nice for each job, within [low, high].

    As few nices as possible are changed. If a gap between unchanged nices is too small, all are changed.

    Args:
        nices: Present nices, in the desired order of the jobs; None: not set yet.
        low: Lowest nice.
        high: Highest nice.
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
    """Return the indices of a longest strictly ascending subsequence of `nices`, ignoring None."""
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
