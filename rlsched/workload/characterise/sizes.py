"""Statistics by number of GPUs: jobs, durations and GPU-time; cumulative distributions of the duration."""

from __future__ import annotations

import numpy as np

from rlsched.workload.characterise.parts import Floats, Ints, Report, quantiles, quotient
from rlsched.workload.trace import Trace

SIZE_CLASSES: tuple[tuple[str, float], ...] = (
    ("CPU only", 0),
    ("share", float(np.nextafter(0, 1))),
    ("1", 1),
    ("2-3", 2),
    ("4-7", 4),
    ("8", 8),
    ("9-16", 9),
    ("17-32", 17),
    ("33-64", 33),
    ("over 64", 65),
)
"""Size classes: (label, minimum number of GPUs). A class ends where the next class begins."""
POINTS_A_DECADE = 20


def size_class(num_gpus: Floats) -> Ints:
    """Return the (J,) index of each job's class in `SIZE_CLASSES`."""
    fewest = [low for _, low in SIZE_CLASSES]
    return np.searchsorted(fewest, num_gpus, side="right").astype(np.int64) - 1


def by_size(trace: Trace, gpu_s: Floats, classes: Ints) -> list[Report]:
    """Return a row for each size class with jobs: the count and fraction of jobs, the fraction of GPU-time,
    and statistics of the durations.

    Args:
        trace: J jobs.
        gpu_s: (J,) GPU-time, GPU-seconds.
        classes: (J,) result of `size_class`.
    """
    rows = []
    for position, (label, _) in enumerate(SIZE_CLASSES):
        mine = classes == position
        if mine.any():
            rows.append(
                {
                    "gpus": label,
                    "jobs": int(mine.sum()),
                    "jobs_frac": float(mine.mean()),
                    "gpu_time_frac": quotient(float(gpu_s[mine].sum()), float(gpu_s.sum())),
                    **quantiles(trace.duration_s[mine]),
                }
            )
    return rows


def duration_curves(trace: Trace, gpu_s: Floats, classes: Ints) -> Report:
    """Return cumulative distributions of the duration.

    Returns:
        `at_s`: P durations, seconds, a logarithmic grid from 1 s to at least the longest job.
        `jobs_frac`: fraction of the jobs that are at most as long as each duration in `at_s`.
        `gpu_time_frac`: fraction of the GPU-time of these jobs; None if the trace has no GPU-time.
        `sizes`: a row per size class, with its label `gpus` and its own `jobs_frac`.
    """
    longest = max(float(trace.duration_s.max()), 1.0)
    points = int(np.ceil(np.log10(longest) * POINTS_A_DECADE)) + 1
    at_s = 10.0 ** (np.arange(points) / POINTS_A_DECADE)
    at_s[-1] = max(at_s[-1], longest)
    order = np.argsort(trace.duration_s)
    sorted_s, sorted_class = trace.duration_s[order], classes[order]
    jobs_below = np.searchsorted(sorted_s, at_s, side="right")
    work = np.concatenate([[0.0], np.cumsum(gpu_s[order])])
    sizes = []
    for position, (label, _) in enumerate(SIZE_CLASSES):
        mine = sorted_s[sorted_class == position]
        if len(mine):
            below = np.searchsorted(mine, at_s, side="right")
            sizes.append({"gpus": label, "jobs_frac": (below / len(mine)).tolist()})
    return {
        "at_s": at_s.tolist(),
        "jobs_frac": (jobs_below / len(trace)).tolist(),
        "gpu_time_frac": (work[jobs_below] / work[-1]).tolist() if work[-1] > 0 else None,
        "sizes": sizes,
    }
