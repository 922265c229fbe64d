"""GPUs over time: GPUs that jobs held, GPUs that they would hold without waiting, and GPU-time submitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.characterise.clock import SLOTS, WeekClock
from rlsched.workload.characterise.parts import Floats, Report, missing, quotient, total_by
from rlsched.workload.trace import Trace

NO_TIME = (
    "All jobs are submitted at one instant, or over too long a time to divide it into hours, so nothing can "
    "be shown over time."
)
NO_STARTS = (
    "The trace does not record how long jobs waited, so when they ran is unknown. "
    "(A replay would know: `rlsched evaluate` reports the utilisation under a policy.)"
)


class HeldGpus:
    """GPUs held over time by jobs that run without interruption.

    Args:
        start_s: (J,) start of each job, seconds.
        duration_s: (J,) run time of each job, seconds.
        num_gpus: (J,) GPUs that each job holds.
    """

    def __init__(self, start_s: Floats, duration_s: Floats, num_gpus: Floats) -> None:
        self._zero_s = float(start_s.min())  # close to the times in use, so that large sums stay exact
        self._up = _Ramp(start_s - self._zero_s, num_gpus)
        self._down = _Ramp(start_s - self._zero_s + duration_s, num_gpus)

    def gpu_seconds(self, edges_s: Floats) -> Floats:
        """Return the (E - 1,) GPU-seconds held between each of E edges and the next edge."""
        at_s = edges_s - self._zero_s
        held: Floats = np.diff(self._up.values_at(at_s) - self._down.values_at(at_s))
        return np.maximum(held, 0.0)  # the difference of two large sums may be a little below 0


class _Ramp:
    """The function of time t in seconds: sum over all jobs of `weight x max(0, t - since)`."""

    def __init__(self, since_s: Floats, weight: Floats) -> None:
        order = np.argsort(since_s, kind="stable")
        self._since = since_s[order]
        self._weight = np.concatenate([[0.0], np.cumsum(weight[order])])
        self._moment = np.concatenate([[0.0], np.cumsum(weight[order] * self._since)])

    def values_at(self, times_s: Floats) -> Floats:
        below = np.searchsorted(self._since, times_s, side="right")
        ramp: Floats = times_s * self._weight[below] - self._moment[below]
        return ramp


def demand(trace: Trace) -> HeldGpus:
    """Return the GPUs that the jobs would hold over time if each job started at its submission."""
    return HeldGpus(trace.submit_s, trace.duration_s, trace.num_gpus)


def in_use(trace: Trace, wait_s: Floats) -> HeldGpus | None:
    """Return the GPUs that the jobs held over time, given their recorded waits; None: no wait is recorded.

    Args:
        trace: J jobs.
        wait_s: (J,) column `queue_s`; jobs with an unknown wait (nan) are left out.
    """
    known = ~np.isnan(wait_s)
    if not known.any():
        return None
    start_s = trace.submit_s[known] + wait_s[known]
    return HeldGpus(start_s, trace.duration_s[known], trace.num_gpus[known])


def by_hour_of_week(held: HeldGpus, clock: WeekClock) -> tuple[Floats, Floats] | None:
    """Return two (168,) arrays by hour of the week: GPU-seconds held, and seconds of the trace in this hour.

    Only the time from the first to the last submission counts. None: all jobs are submitted at one instant,
    or the trace is longer than `MOST_HOURS`.
    """
    edges = clock.hour_edges()
    if edges is None:
        return None
    slot = clock.hour((edges[:-1] + edges[1:]) / 2) % SLOTS
    return total_by(slot, held.gpu_seconds(edges), SLOTS), total_by(slot, np.diff(edges), SLOTS)


def week(trace: Trace, clock: WeekClock, demanded: HeldGpus) -> Report:
    """Report submissions and demand by hour of the week.

    Returns:
        Three tables of 7 rows (days) and 24 columns (hours). `hours`: how often the trace contains each hour
        of the week. `jobs_per_hour`: mean number of submissions. `gpus_in_demand`: mean number of GPUs.
        A mean is None for an hour that the trace does not contain. If all jobs are submitted at one instant,
        `gpus_in_demand` is None instead of a table.
    """
    hours = clock.hours_in_slots()
    jobs = np.bincount(clock.hour(trace.submit_s) % SLOTS, minlength=SLOTS)
    held = by_hour_of_week(demanded, clock)
    return {
        "hours": hours.reshape(7, 24).tolist(),
        "jobs_per_hour": _means(jobs, hours).tolist(),
        "gpus_in_demand": None if held is None else _means(*held).tolist(),
    }


def utilisation(used: HeldGpus | None, clock: WeekClock, wait_s: Floats, gpus: int | None) -> Report:
    """Report the GPUs that jobs held, by hour and weekday, computed from recorded waits.

    Args:
        used: Result of `in_use`.
        clock: Object that converts times of the trace to hours of the week.
        wait_s: (J,) column `queue_s`, nan if unknown.
        gpus: GPUs of the cluster; None: unknown.

    Returns:
        Mean counts of GPUs held from the first to the last submission: in total, by hour of the day, by
        weekday, and by hour of the week (7 rows of 24 hours). `mean_frac` is the total mean, divided by
        `gpus`. If no waits are recorded, the result of `missing`.
    """
    if used is None:
        return missing(NO_STARTS, "queue_s")
    held = by_hour_of_week(used, clock)
    if held is None:
        return missing(NO_TIME)
    gpu_s, seconds = (part.reshape(7, 24) for part in held)
    mean = quotient(float(gpu_s.sum()), float(seconds.sum()))
    return {
        "jobs": int((~np.isnan(wait_s)).sum()),
        "left_out": int(np.isnan(wait_s).sum()),
        "capacity_gpus": gpus,
        "mean_gpus": mean,
        "mean_frac": None if gpus is None or mean is None else mean / gpus,
        "by_hour_gpus": _means(gpu_s.sum(axis=0), seconds.sum(axis=0)).tolist(),
        "by_weekday_gpus": _means(gpu_s.sum(axis=1), seconds.sum(axis=1)).tolist(),
        "by_hour_of_week_gpus": _means(gpu_s, seconds).tolist(),
    }


def over_time(
    trace: Trace,
    clock: WeekClock,
    demanded: HeldGpus,
    used: HeldGpus | None,
    gpu_s: Floats,
    runnable: NDArray[np.bool_] | None,
    gpus: int | None,
) -> Report:
    """Report the load in each time bin of the trace.

    Args:
        trace: J jobs.
        clock: Object that divides the time of the trace into bins.
        demanded: Result of `demand`.
        used: Result of `in_use`.
        gpu_s: (J,) GPU-time, GPU-seconds.
        runnable: (J,) whether the cluster can ever run the job; None: no cluster.
        gpus: GPUs of the cluster; None: no cluster.

    Returns:
        Lists with a value for each bin.
        `start_s`, `width_s`: start and width of the bin, seconds.
        `jobs`: number of jobs submitted.
        `offered_gpus`: GPU-time of the jobs submitted, divided by the width.
        `gpus_in_demand`: mean GPUs that jobs would hold without waiting.
        `gpus_in_use`: mean GPUs that jobs held; None if no wait is recorded.
        `load_frac`: GPU-time of the jobs submitted that can run, divided by (GPUs of the cluster x width);
        None without a cluster.
    """
    edges = clock.bin_edges()
    if edges is None:
        return missing(NO_TIME)
    width = np.diff(edges)
    bin_of = np.clip(np.searchsorted(edges, trace.submit_s, side="right") - 1, 0, len(width) - 1)

    def submitted(weights: Floats) -> Floats:
        return total_by(bin_of, weights, len(width))

    load = None
    if runnable is not None and gpus:
        load = (submitted(np.where(runnable, gpu_s, 0.0)) / (gpus * width)).tolist()
    return {
        "capacity_gpus": gpus,
        "start_s": edges[:-1].tolist(),
        "width_s": width.tolist(),
        "jobs": np.bincount(bin_of, minlength=len(width)).tolist(),
        "offered_gpus": (submitted(gpu_s) / width).tolist(),
        "gpus_in_demand": (demanded.gpu_seconds(edges) / width).tolist(),
        "gpus_in_use": None if used is None else (used.gpu_seconds(edges) / width).tolist(),
        "load_frac": load,
    }


def _means(total: NDArray[np.generic], count: NDArray[np.generic]) -> NDArray[np.object_]:
    """Divide two arrays; None where `count` is 0. Results by hour of the week (168) become 7 rows of 24."""
    shape = (7, 24) if total.shape == (SLOTS,) else total.shape
    pairs = zip(total.ravel().tolist(), count.ravel().tolist(), strict=True)
    return np.array([quotient(part, whole) for part, whole in pairs], dtype=object).reshape(shape)
