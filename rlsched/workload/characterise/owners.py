"""Users and virtual clusters of jobs, and how unevenly GPU-time is distributed among them."""

from __future__ import annotations

import numpy as np

from rlsched.workload.characterise.parts import (
    HOUR_S,
    Floats,
    Ints,
    Keys,
    Report,
    missing,
    quotient,
    total_by,
)
from rlsched.workload.trace import Trace

TOP_FRACS = (0.01, 0.05, 0.1, 0.25, 0.5)
MOST_ROWS = 20
_CURVE_POINTS = 100


def users(trace: Trace, keys: Keys, gpu_s: Floats) -> Report:
    """Report the number of users, and the jobs and GPU-time of the users with the most GPU-time.

    Args:
        trace: J jobs.
        keys: Column `user` as codes.
        gpu_s: (J,) GPU-time, GPU-seconds.

    Returns:
        Users are sorted by GPU-time, largest first. Jobs without a user are not counted.
        `top`: a row for the first 1, 5, 10, 25 and 50 % of the users (at least one user), with their
        fractions of the jobs and of the GPU-time.
        `curve`: for several fractions of the users (`users_frac`), beginning with the users with the most
        GPU-time: the fraction of the GPU-time that these users took.
        `largest`: a row for each of the first 20 users.
    """
    if not keys.names:
        return missing("The trace does not record who submitted its jobs.", "user")
    known = keys.is_known
    code, work = keys.code[known], gpu_s[known]
    jobs = np.bincount(code)
    gpu_time = total_by(code, work, len(keys.names))
    order = np.argsort(-gpu_time, kind="stable")
    rows_of = _rows_of(keys)
    jobs_sum = np.concatenate([[0], np.cumsum(jobs[order])])
    work_sum = np.concatenate([[0.0], np.cumsum(gpu_time[order])])
    counts = [max(1, round(frac * len(order))) for frac in TOP_FRACS]
    points = np.unique(np.linspace(0, len(order), _CURVE_POINTS + 1).round().astype(np.int64))
    return {
        "users": len(order),
        "jobs": int(known.sum()),
        "left_out": int((~known).sum()),
        "jobs_p50": float(np.median(jobs)),
        "jobs_max": int(jobs.max()),
        "top": [
            {
                "users_frac": frac,
                "users": count,
                "jobs_frac": float(jobs_sum[count] / jobs_sum[-1]),
                "gpu_time_frac": quotient(float(work_sum[count]), float(work_sum[-1])),
            }
            for frac, count in zip(TOP_FRACS, counts, strict=True)
        ],
        "curve": {
            "users_frac": (points / len(order)).tolist(),
            "gpu_time_frac": (work_sum[points] / work_sum[-1]).tolist() if work_sum[-1] > 0 else None,
        },
        "largest": [
            {"user": keys.names[k], **_row(trace.duration_s[rows_of[k]], gpu_s[rows_of[k]], work_sum[-1])}
            for k in order[:MOST_ROWS].tolist()
        ],
    }


def virtual_clusters(trace: Trace, keys: Keys, gpu_s: Floats) -> Report:
    """Return a row for each virtual cluster of the jobs, largest GPU-time first.

    Args:
        trace: J jobs.
        keys: Column `vc` as codes.
        gpu_s: (J,) GPU-time, GPU-seconds.

    Returns:
        `rows`: a row per VC. `gpu_time_frac` is a fraction of the GPU-time of the jobs with a known VC.
    """
    if not keys.names:
        return missing("The trace names no virtual clusters.", "vc")
    known = keys.is_known
    total = float(gpu_s[known].sum())
    order = np.argsort(-total_by(keys.code[known], gpu_s[known], len(keys.names)), kind="stable")
    rows_of = _rows_of(keys)
    return {
        "jobs": int(known.sum()),
        "left_out": int((~known).sum()),
        "rows": [
            {
                "vc": keys.names[k],
                "largest_gpus": float(trace.num_gpus[rows_of[k]].max()),
                **_row(trace.duration_s[rows_of[k]], gpu_s[rows_of[k]], total),
            }
            for k in order.tolist()
        ],
    }


def _rows_of(keys: Keys) -> list[Ints]:
    """Return the indices of the jobs of each name in `keys.names`."""
    order = np.argsort(keys.code, kind="stable")
    return np.split(order, np.searchsorted(keys.code[order], np.arange(len(keys.names))))[1:]


def _row(duration_s: Floats, gpu_s: Floats, total_gpu_s: float) -> Report:
    return {
        "jobs": len(duration_s),
        "gpu_time_h": float(gpu_s.sum()) / HOUR_S,
        "gpu_time_frac": quotient(float(gpu_s.sum()), float(total_gpu_s)),
        "p50_s": float(np.median(duration_s)),
    }
