"""Outcomes of jobs, derived from the status that the publisher recorded, and the GPU-time of each outcome."""

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
"""Outcome -> publishers' words for it, in lower case.

Only the first word of a status counts (`CANCELLED by 1000`). The words are Slurm's job states; Philly's Pass,
Killed and Failed; the states of Alibaba PAI; and the phases of Kubernetes pods (Alibaba's openb). A job that
exceeded its time limit, or whose node failed, counts as failed, as in the Helios study (notes to the fields
of HeliosData).
"""
OTHER = "other"
_OF_WORD = {word: outcome for outcome, words in OUTCOMES.items() for word in words}
_ORDER = (*OUTCOMES, OTHER)


def outcome_of(status: str) -> str:
    """Return the outcome, a key of `OUTCOMES`, to which the first word of a status belongs; else `other`."""
    words = status.lower().split()
    return _OF_WORD.get(words[0], OTHER) if words else OTHER


def status_counts(trace: Trace) -> dict[str, int]:
    """Return a dict: publisher's status -> number of jobs, most frequent first, without blank statuses."""
    return dict(Counter(trace.status[trace.status != ""].tolist()).most_common())


def outcomes(trace: Trace, counts: dict[str, int], gpu_s: Floats, classes: Ints) -> Report:
    """Report jobs and GPU-time by outcome, by status, and by outcome in each size class.

    Args:
        trace: J jobs.
        counts: Result of `status_counts`.
        gpu_s: (J,) GPU-time, GPU-seconds.
        classes: (J,) result of `sizes.size_class`.

    Returns:
        `outcomes` has a row per outcome. `sizes` has a row per size class with two dicts: outcome -> fraction
        of the class's jobs (`jobs_frac`) and of its GPU-time (`gpu_time_frac`). Jobs without a status are not
        counted.
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
