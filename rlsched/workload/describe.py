"""What is in a trace, and what it asks of a cluster: the numbers behind `rlsched trace describe`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.load import offered_load, partition_sizes, runnable_mask, span_s
from rlsched.workload.trace import Trace

HOUR_S = 3600.0
DAY_S = 86400.0
SIZE_BUCKETS: tuple[tuple[str, float, float], ...] = (
    ("CPU only", 0, 0),
    ("share", 1e-12, 0.999999),
    ("1", 1, 1),
    ("2-3", 2, 3),
    ("4-7", 4, 7),
    ("8", 8, 8),
    ("9-16", 9, 16),
    ("17-32", 17, 32),
    ("33-64", 33, 64),
    ("over 64", 65, np.inf),
)
"""(label, fewest GPUs, most GPUs)."""

Report = dict[str, Any]
Mask = NDArray[np.bool_]


def describe(trace: Trace, spec: ClusterSpec | None = None) -> Report:
    """Sizes, durations, arrivals and GPU-time of a trace; with a cluster, its load and who can never run.

    All times are seconds; shares end in `_frac`; what is unknown is None. The keys are those of
    `rlsched trace describe --json`.
    """
    report: Report = {
        "trace": trace.name,
        "jobs": len(trace),
        "span_s": span_s(trace),
        "gpu_time_h": float(np.sum(trace.duration_s * trace.num_gpus)) / HOUR_S,
        "gpus_in_demand_mean": _over(float(np.sum(trace.duration_s * trace.num_gpus)), span_s(trace)),
        "durations": _durations(trace.duration_s),
        "sizes": _sizes(trace),
        "arrivals": _arrivals(trace),
        "users": _known(trace.user),
        "vcs": _known(trace.vc),
        "statuses": dict(Counter(trace.status[trace.status != ""].tolist()).most_common()),
        "predictions": _predictions(trace),
    }
    if spec is not None:
        report["cluster"] = _against(trace, spec)
    return report


def _durations(duration_s: NDArray[np.float64]) -> Report:
    return (
        {"mean_s": float(duration_s.mean())}
        | {
            f"p{label}_s": float(np.quantile(duration_s, q))
            for label, q in (("10", 0.1), ("50", 0.5), ("90", 0.9), ("99", 0.99))
        }
        | {"max_s": float(duration_s.max())}
    )


def _sizes(trace: Trace) -> list[Report]:
    work = trace.duration_s * trace.num_gpus
    rows = []
    for label, low, high in SIZE_BUCKETS:
        mine = (trace.num_gpus >= low) & (trace.num_gpus <= high)
        if mine.any():
            rows.append(
                {
                    "gpus": label,
                    "jobs": int(mine.sum()),
                    "jobs_frac": float(mine.mean()),
                    "gpu_time_frac": _over(float(work[mine].sum()), float(work.sum())),
                    **_durations(trace.duration_s[mine]),
                }
            )
    return rows


def _arrivals(trace: Trace) -> Report:
    since_first = trace.submit_s - trace.submit_s[0]
    by_hour = np.bincount((trace.submit_s // HOUR_S % 24).astype(np.int64), minlength=24)
    hours = (since_first // HOUR_S).astype(np.int64)
    index, count = np.unique(hours, return_counts=True)
    work = np.bincount(np.searchsorted(index, hours), weights=trace.duration_s * trace.num_gpus)
    busiest = np.argsort(-count, kind="stable")[:5]
    gaps = np.diff(trace.submit_s)
    return {
        "per_day_mean": _over(len(trace) * DAY_S, span_s(trace)),
        "gap_p50_s": float(np.median(gaps)) if len(gaps) else None,
        "same_second_frac": float(np.mean(gaps == 0)) if len(gaps) else None,
        "by_hour_of_day": by_hour.tolist(),
        "busiest_hours": [
            {
                "start_s": float(trace.submit_s[0] + index[k] * HOUR_S),
                "jobs": int(count[k]),
                "gpu_time_h": float(work[k]) / HOUR_S,
            }
            for k in busiest
        ],
    }


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
    """Spearman's rank correlation, equal values with their mean rank; None where one of them is constant."""
    rank_a, rank_b = _ranks(a), _ranks(b)
    if len(a) < 2 or rank_a.std() == 0 or rank_b.std() == 0:
        return None
    return float(np.corrcoef(rank_a, rank_b)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: NDArray[np.float64] = np.cumsum(count) - (count - 1) / 2.0
    return mean_rank[index]


def _against(trace: Trace, spec: ClusterSpec) -> Report:
    runnable = runnable_mask(trace, spec)
    work = np.where(runnable.mask, trace.duration_s * trace.num_gpus, 0.0)
    sizes = partition_sizes(spec)
    by_vc = []
    for vc in sorted(key for key in sizes if key is not None):
        gpus = sum(size * count for size, count in sizes[vc].items())
        mine: Mask = trace.vc == vc
        by_vc.append(
            {
                "vc": vc,
                "gpus": gpus,
                "jobs": int(mine.sum()),
                "load_frac": _over(float(work[mine].sum()), gpus * span_s(trace)),
            }
        )
    load = offered_load(trace, spec)
    return {
        "cluster": spec.name,
        "nodes": spec.num_nodes,
        "gpus": spec.num_gpus,
        "load_frac": load if np.isfinite(load) else None,
        "jobs_that_can_run": int(runnable.mask.sum()),
        "never_run": int((~runnable.mask).sum()),
        "never_run_by_reason": runnable.counts,
        "by_vc": by_vc,
    }


def _known(cells: NDArray[np.str_]) -> int | None:
    """How many different values are known; None where none is."""
    values = np.unique(cells[cells != ""])
    return len(values) or None


def _over(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
