"""Outcomes of jobs: the outcome for each publisher's status, and the GPU-time spent on failed jobs."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rlsched.workload.characterise.parts import HOUR_S, Floats, Ints, Report, missing, quotient
from rlsched.workload.characterise.sizes import SIZE_CLASSES
from rlsched.workload.trace import Trace

OUTCOMES: dict[str, tuple[str, ...]] = {
    "completed": ("completed", "complete", "succeeded", "success", "pass", "passed", "terminated"),
    "failed": ("failed", "fail", "timeout", "node_fail", "boot_fail", "out_of_memory", "deadline"),
    "cancelled": ("cancelled", "canceled", "killed", "preempted", "revoked"),
    "unfinished": ("running", "pending", "waiting", "suspended", "requeued", "resizing"),
}
"""Publishers' statuses by outcome, in lower case. Only a status's first word counts (`CANCELLED by 1000`).

Slurm's statuses are its job states. A job that exceeded its time limit or whose node failed counts as failed,
as in the Helios study (notes to the fields of HeliosData). Philly: Pass, Killed (by its user), Failed.
Alibaba PAI: only Terminated is a success. Alibaba's openb: the phases of a Kubernetes pod.
"""
OTHER = "other"
_OF_WORD = {word: outcome for outcome, words in OUTCOMES.items() for word in words}
_ORDER = (*OUTCOMES, OTHER)


def outcome_of(status: str) -> str:
    """Return one of the keys of `OUTCOMES`, or `other` if the status is unknown."""
    words = status.lower().split()
    return _OF_WORD.get(words[0], OTHER) if words else OTHER


def status_counts(trace: Trace) -> dict[str, int]:
    """Count the jobs by publisher's status, most frequent first; blank statuses are left out."""
    return dict(Counter(trace.status[trace.status != ""].tolist()).most_common())


def outcomes(trace: Trace, counts: dict[str, int], gpu_s: Floats, classes: Ints) -> Report:
    """Report jobs and GPU-time by outcome, by status, and by outcome in each size class.

    Args:
        trace: J jobs.
        counts: Result of `status_counts`.
        gpu_s: (J,) GPU-time, GPU-seconds.
        classes: (J,) result of `sizes.size_class`.

    Returns:
        Jobs without a status are ignored. `sizes` has a row per size class: by outcome, the share of the
        class's jobs (`jobs_frac`) and of its GPU-time (`gpu_time_frac`).
    """
    known = trace.status != ""
    if not counts:
        return missing("The trace does not record how its jobs ended.", "status")
    numbers = {status: _ORDER.index(outcome_of(status)) for status in counts}
    outcome = np.array([numbers[status] for status in trace.status[known].tolist()], dtype=np.int64)
    work, duration_s, known_classes = gpu_s[known], trace.duration_s[known], classes[known]
    total = float(work.sum())
    rows = []
    for position, name in enumerate(_ORDER):
        mine = outcome == position
        if mine.any():
            rows.append(
                {
                    "outcome": name,
                    "statuses": [status for status, number in numbers.items() if number == position],
                    "jobs": int(mine.sum()),
                    "jobs_frac": float(mine.mean()),
                    "gpu_time_h": float(work[mine].sum()) / HOUR_S,
                    "gpu_time_frac": quotient(float(work[mine].sum()), total),
                    "p50_s": float(np.median(duration_s[mine])),
                }
            )
    return {
        "jobs": int(known.sum()),
        "left_out": int((~known).sum()),
        "outcomes": rows,
        "sizes": _by_size(outcome, known_classes, work),
    }


def _by_size(outcome: Ints, classes: Ints, work: Floats) -> list[Report]:
    rows = []
    for position, (label, _) in enumerate(SIZE_CLASSES):
        mine = classes == position
        if mine.any():
            jobs = np.bincount(outcome[mine], minlength=len(_ORDER))
            gpu_s = np.bincount(outcome[mine], weights=work[mine], minlength=len(_ORDER))
            rows.append(
                {
                    "gpus": label,
                    "jobs": int(mine.sum()),
                    "jobs_frac": dict(zip(_ORDER, (jobs / jobs.sum()).tolist(), strict=True)),
                    "gpu_time_frac": None
                    if gpu_s.sum() == 0
                    else dict(zip(_ORDER, (gpu_s / gpu_s.sum()).tolist(), strict=True)),
                }
            )
    return rows
