"""Recorded waiting times of jobs, by number of GPUs."""

from __future__ import annotations

import numpy as np

from rlsched.workload.characterise.parts import HOUR_S, Floats, Ints, Report, missing, quantiles
from rlsched.workload.characterise.sizes import SIZE_CLASSES
from rlsched.workload.trace import Trace


def waits(trace: Trace) -> Floats:
    """Return the (J,) recorded wait of each job (column `queue_s`), seconds, nan if unknown."""
    known: Floats | None = trace.extra.get("queue_s")
    return np.full(len(trace), np.nan) if known is None else known


def waiting(wait_s: Floats, classes: Ints) -> Report:
    """Report the waiting times of all jobs, and of the jobs of each size class.

    Args:
        wait_s: (J,) result of `waits`.
        classes: (J,) result of `sizes.size_class`.
    """
    known = ~np.isnan(wait_s)
    if not known.any():
        return missing("The trace does not record how long jobs waited.", "queue_s")
    rows = []
    for position, (label, _) in enumerate(SIZE_CLASSES):
        mine = known & (classes == position)
        if mine.any():
            rows.append({"gpus": label, **_row(wait_s[mine])})
    return {"left_out": int((~known).sum()), **_row(wait_s[known]), "sizes": rows}


def _row(wait_s: Floats) -> Report:
    return {
        "jobs": len(wait_s),
        "waited_frac": float(np.mean(wait_s > 0)),
        "over_1h_frac": float(np.mean(wait_s > HOUR_S)),
        **quantiles(wait_s),
    }
