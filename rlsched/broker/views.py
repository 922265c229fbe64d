"""The book as people see it: jobs, nodes, room."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rlsched.broker.book import Book
from rlsched.broker.jobs import Attempt, Job
from rlsched.cluster.arrays import NODE_UP
from rlsched.wire.messages import JobInfo, NodeInfo

MAX_LISTED_CHARACTERS = 200


class Room(NamedTuple):
    """What is free in one partition, on nodes that are up."""

    partition: int
    free_gpus: int
    largest_hole: int
    gpus: int


def rooms(book: Book, vc: str) -> list[Room]:
    """Room in each partition that serves this VC: its own first, then the shared one."""
    node = book.cluster.arrays.node
    found = []
    for partition in book.cluster.partitions_of(vc):
        if partition >= 0:
            free = node.free[(node.part_of == partition) & (node.status == NODE_UP)]
            gpus = node.gpus[(node.part_of == partition) & (node.status == NODE_UP)]
            found.append(Room(partition, int(free.sum()), int(free.max(initial=0)), int(gpus.sum())))
    return found


def place_of(job: Job) -> str:
    """Where the current or last attempt has its GPUs, such as `n0[0,1] n1[3]`."""
    if job.attempt is None:
        return ""
    return " ".join(f"{rank.node}[{','.join(map(str, rank.gpus))}]" for rank in job.attempt.ranks)


def waiting_reason(book: Book, job: Job) -> str:
    """One line on why a queued job waits; `explain` says more."""
    again = f"{job.reason}; queued again; " if job.reason else ""
    if not book.nodes:
        return "no node has registered yet"
    open_rooms = rooms(book, job.spec.vc)
    if not book.cluster.can_ever_run(job.spec.vc, job.spec.num_gpus):
        return f"{again}does not fit the nodes that have registered so far"
    most = max(open_rooms, key=lambda room: room.free_gpus)
    if most.free_gpus < job.spec.num_gpus:
        return f"{again}needs {job.spec.num_gpus} GPUs, {most.free_gpus} free"
    fitting = [room for room in open_rooms if fits_now(book, job, room)]
    if not fitting:
        return f"{again}{most.free_gpus} GPUs free, but not together: {most.largest_hole} on one node at most"
    if asked_again_s(book, fitting) > book.now_s:
        return f"{again}held back until the policy decides again"
    return f"{again}held back: others were preferred"


def asked_again_s(book: Book, among: Sequence[Room]) -> float:
    """When the policy has asked to decide again in one of these partitions, Unix seconds; 0: it has not."""
    names = book.cluster.partition_names
    return min(
        (
            book.asked_for_s[names[room.partition]]
            for room in among
            if names[room.partition] in book.asked_for_s
        ),
        default=0.0,
    )


def fits_now(book: Book, job: Job, room: Room) -> bool:
    """Whether a queued job could start in this partition now."""
    from rlsched.cluster.placement import fits

    return bool(fits(book.cluster.arrays, room.partition, job.spec.num_gpus))


def seat_reason(attempt: Attempt) -> str:
    """Why an attempt that has GPUs is not launched yet."""
    numbers = sorted({number for number, _ in attempt.leaving})
    others = ", ".join(f"job {number}" for number in numbers)
    return f"waits until {others}, preempted, {'has' if len(numbers) == 1 else 'have'} left its GPUs"


def job_info(book: Book, job: Job) -> JobInfo:
    """A job as people see it."""
    attempt = job.attempt
    reason = job.reason
    if job.state == "queued":
        reason = waiting_reason(book, job)
    elif job.active is not None and job.active.ending:
        reason = f"being ended: {job.active.ending_reason}"
    elif job.active is not None and job.active.leaving:
        reason = seat_reason(job.active)
    ranks = attempt.ranks if attempt is not None else []
    return JobInfo(
        job=job.number,
        name=_short(job.spec.name),
        user=_short(job.spec.user),
        vc=_short(job.spec.vc),
        state=job.state,
        num_gpus=job.spec.num_gpus,
        attempt=attempt.number if attempt else 0,
        submit_s=job.submit_s,
        predicted_s=job.spec.predicted_s,
        predicted_by=job.spec.predicted_by,
        start_s=attempt.start_s if attempt else None,
        end_s=job.end_s,
        exit_code=job.exit_code,
        nodes=[rank.node for rank in ranks],
        gpus=[rank.gpus for rank in ranks],
        decided_by=attempt.source if attempt else "",
        reason=reason,
        preemptible=job.spec.preemptible,
        preemptions=job.preemptions,
        workload=job.spec.workload,
        speed_energy=job.spec.speed_energy,
        sm_clock_frac=attempt.sm_clock_frac if attempt else None,
        sm_clocks_mhz=[rank.sm_clock_mhz for rank in ranks],
    )


def _short(text: str) -> str:
    """What a list can hold; journals of earlier versions have names of any length."""
    return text if len(text) <= MAX_LISTED_CHARACTERS else text[: MAX_LISTED_CHARACTERS - 1] + "…"


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which n2 comes before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def node_info(book: Book, name: str, seen_s: float) -> NodeInfo:
    """A node as people see it."""
    node = book.nodes[name]
    free = int(book.cluster.arrays.node.free[node.number]) if node.up and not node.away else 0
    return NodeInfo(
        name=name,
        state=node.state,
        reason=node.reason,
        gpus=node.spec.gpus,
        free_gpus=free,
        gpu_type=node.spec.gpu_type,
        vc=node.spec.vc,
        jobs=sorted(node.live_jobs),
        last_seen_s=seen_s,
        max_sm_clock_mhz=max(node.spec.sm_clocks_mhz, default=0),
        clocks_note=node.spec.clocks_note,
    )
