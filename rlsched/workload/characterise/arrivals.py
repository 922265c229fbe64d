"""Submissions of jobs: the rate, the gaps between submissions, and the hours of the day."""

from __future__ import annotations

import numpy as np

from rlsched.workload.characterise.clock import WeekClock
from rlsched.workload.characterise.parts import DAY_S, HOUR_S, Floats, Report, quotient
from rlsched.workload.load import span_s
from rlsched.workload.trace import Trace


def arrivals(trace: Trace, clock: WeekClock, gpu_s: Floats) -> Report:
    """Report the submissions: jobs per day, gaps, jobs by hour of the day, and the five busiest hours.

    For the busiest hours, the trace is divided into hours from the first submission on.

    Args:
        trace: J jobs.
        clock: Object that converts times of the trace to hours of the day.
        gpu_s: (J,) GPU-time, GPU-seconds.
    """
    hours = ((trace.submit_s - trace.submit_s[0]) // HOUR_S).astype(np.int64)
    index, count = np.unique(hours, return_counts=True)
    work = np.bincount(np.searchsorted(index, hours), weights=gpu_s)
    busiest = np.argsort(-count, kind="stable")[:5]
    gaps = np.diff(trace.submit_s)
    return {
        "per_day_mean": quotient(len(trace) * DAY_S, span_s(trace)),
        "gap_p50_s": float(np.median(gaps)) if len(gaps) else None,
        "same_second_frac": float(np.mean(gaps == 0)) if len(gaps) else None,
        "by_hour_of_day": np.bincount(clock.hour(trace.submit_s) % 24, minlength=24).tolist(),
        "busiest_hours": [
            {
                "start_s": float(trace.submit_s[0] + index[k] * HOUR_S),
                "jobs": int(count[k]),
                "gpu_time_h": float(work[k]) / HOUR_S,
            }
            for k in busiest
        ],
    }
