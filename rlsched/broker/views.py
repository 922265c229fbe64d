"""The book as people see it: jobs and nodes."""

from __future__ import annotations

import re

from rlsched.broker.book import Book
from rlsched.broker.jobs import Attempt, Job
from rlsched.broker.waiting import WaitingReasons
from rlsched.wire.messages import JobInfo, NodeInfo

MAX_NAME_CHARS = 200
"""Of names of jobs, users, virtual clusters and GPU types in lists."""
MAX_REASON_CHARS = 500


def seat_reason(attempt: Attempt) -> str:
    """Why an attempt that has GPUs is not launched yet."""
    numbers = sorted({number for number, _ in attempt.leaving})
    others = ", ".join(f"job {number}" for number in numbers)
    return f"waits until {others}, preempted, {'has' if len(numbers) == 1 else 'have'} left its GPUs"


def shortened(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """A text that fits a list; what is left out stands as `...`."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def job_info(job: Job, reasons: WaitingReasons, max_nodes: int) -> JobInfo:
    """A job as people see it, with long texts shortened.

    Args:
        job: The job.
        reasons: Why queued jobs wait.
        max_nodes: Nodes that are named; a gang of many more must still fit a frame.
    """
    attempt = job.attempt
    reason = job.reason
    if job.state == "queued":
        reason = reasons.of(job)
    elif job.active is not None and job.active.ending:
        reason = f"being ended: {job.active.ending_reason}"
    elif job.active is not None and job.active.leaving:
        reason = seat_reason(job.active)
    ranks = attempt.ranks[:max_nodes] if attempt is not None else []
    return JobInfo(
        job=job.number,
        name=shortened(job.spec.name),
        user=shortened(job.spec.user),
        account=shortened(job.spec.account),
        vc=shortened(job.spec.vc),
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
        nodes_omitted=len(attempt.ranks) - len(ranks) if attempt else 0,
        decided_by=attempt.source if attempt else "",
        reason=shortened(reason, MAX_REASON_CHARS),
        preemptible=job.spec.preemptible,
        priority=job.spec.priority,
        preemptions=job.preemptions,
        workload=job.spec.workload,
        speed_energy=job.spec.speed_energy,
        sm_clock_frac=attempt.sm_clock_frac if attempt else None,
        sm_clocks_mhz=[rank.sm_clock_mhz for rank in ranks],
    )


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which n2 comes before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def node_info(book: Book, name: str, seen_s: float, clock_skew_s: float | None = None) -> NodeInfo:
    """A node as people see it."""
    node = book.nodes[name]
    free = int(book.cluster.arrays.node.free[node.number]) if node.up and not node.away else 0
    return NodeInfo(
        name=name,
        state=node.state,
        reason=shortened(node.reason, MAX_REASON_CHARS),
        gpus=node.spec.gpus,
        free_gpus=free,
        gpu_type=shortened(node.spec.gpu_type),
        vc=shortened(node.spec.vc),
        jobs=sorted(node.live_jobs),
        last_seen_s=seen_s,
        clock_skew_s=clock_skew_s,
        notes=node.spec.notes,
        max_sm_clock_mhz=max(node.spec.sm_clocks_mhz, default=0),
        clocks_note=shortened(node.spec.clocks_note, MAX_REASON_CHARS),
    )
