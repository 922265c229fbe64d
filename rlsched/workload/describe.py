"""Statistics of a trace, and of its load on a cluster, as `rlsched trace describe` prints them."""

from __future__ import annotations

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.characterise.arrivals import arrivals
from rlsched.workload.characterise.capacity import against
from rlsched.workload.characterise.clock import WeekClock
from rlsched.workload.characterise.outcomes import outcomes, status_counts
from rlsched.workload.characterise.owners import users, virtual_clusters
from rlsched.workload.characterise.parts import HOUR_S, Report, gpu_seconds, keyed, quantiles, quotient
from rlsched.workload.characterise.repeats import in_bursts, repeats
from rlsched.workload.characterise.sizes import by_size, duration_curves, size_class
from rlsched.workload.characterise.usage import demand, in_use, over_time, utilisation, week
from rlsched.workload.characterise.waiting import waiting, waits
from rlsched.workload.load import runnable_mask, span_s
from rlsched.workload.trace import Trace


def describe(trace: Trace, spec: ClusterSpec | None = None, origin: datetime | None = None) -> Report:
    """Return all statistics of a trace; with a cluster, also the load and the jobs that can never run.

    All times are in seconds. Keys that end in `_frac` are fractions of 1. Unknown values are None. If the
    trace lacks the data for a section, the section is `{"missing": [columns], "say": sentence}`.
    docs/how-to/characterise.md lists the keys.

    Args:
        trace: J jobs.
        spec: The cluster.
        origin: Wall-clock time of the trace's second 0. None: use `trace.origin`. If this is also None, hours
            of the day and weekdays are counted from second 0.
    """
    gpu_s = gpu_seconds(trace.duration_s, trace.num_gpus)
    classes = size_class(trace.num_gpus)
    clock = WeekClock(float(trace.submit_s[0]), float(trace.submit_s[-1]), origin or trace.origin)
    by_user, by_vc = keyed(trace.user), keyed(trace.vc)
    wait_s = waits(trace)
    demanded, used = demand(trace), in_use(trace, wait_s)
    statuses = status_counts(trace)
    runnable = None if spec is None else runnable_mask(trace, spec)
    gpus = None if spec is None else spec.num_gpus
    report: Report = {
        "trace": trace.name,
        "jobs": len(trace),
        "span_s": span_s(trace),
        "gpu_time_h": float(gpu_s.sum()) / HOUR_S,
        "gpus_in_demand_mean": quotient(float(gpu_s.sum()), span_s(trace)),
        "durations": quantiles(trace.duration_s),
        "sizes": by_size(trace, gpu_s, classes),
        "duration_curves": duration_curves(trace, gpu_s, classes),
        "arrivals": arrivals(trace, clock, gpu_s),
        "clock": clock.report(),
        "week": week(trace, clock, demanded),
        "utilisation": utilisation(used, clock, wait_s, gpus),
        "over_time": over_time(trace, clock, demanded, used, gpu_s, runnable and runnable.mask, gpus),
        "waiting": waiting(wait_s, classes),
        "users": len(by_user.names) or None,
        "by_user": users(trace, by_user, gpu_s),
        "vcs": len(by_vc.names) or None,
        "by_vc": virtual_clusters(trace, by_vc, gpu_s),
        "repeats": repeats(trace, by_user, gpu_s),
        "bursts": in_bursts(trace, by_vc),
        "statuses": statuses,
        "outcomes": outcomes(trace, statuses, gpu_s, classes),
        "predictions": _predictions(trace),
    }
    if spec is not None and runnable is not None:
        report["cluster"] = against(trace, spec, runnable, gpu_s)
    return report


def _predictions(trace: Trace) -> Report | None:
    known = ~np.isnan(trace.predicted_s)
    if not known.any():
        return None
    true, predicted = trace.duration_s[known], trace.predicted_s[known]
    error = np.log(np.maximum(true, 1.0) / np.maximum(predicted, 1.0))
    return {
        "jobs": int(known.sum()),
        "spearman": spearman(true, predicted),
        "ln_error_sd": float(error.std()),
    }


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation of two arrays; equal values get their mean rank.

    None: all values of `a` or of `b` are equal, or there are fewer than two values.
    """
    rank_a, rank_b = _ranks(a), _ranks(b)
    if len(a) < 2 or rank_a.std() == 0 or rank_b.std() == 0:
        return None
    return float(np.corrcoef(rank_a, rank_b)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: NDArray[np.float64] = np.cumsum(count) - (count - 1) / 2.0
    return mean_rank[index]
