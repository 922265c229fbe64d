"""What a replayed schedule comes to, in numbers: pure functions of a `JobTable`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlsched_envs.engine import JobTable

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one size or one VC. Times in seconds, None where no job of the group ended.

    Attributes:
        jobs: Jobs submitted.
        rejected: Those that can never run.
        unfinished: Those that had not ended when the replay stopped.
        jct_mean_s: Mean JCT (last end - submission) of those that ended.
        jct_p99_s: Its 99th percentile.
        queue_mean_s: Mean queueing delay (first start - submission) of those that ended.
        queue_p50_s: Its median.
        queue_p99_s: Its 99th percentile.
    """

    jobs: int
    rejected: int
    unfinished: int
    jct_mean_s: float | None
    jct_p99_s: float | None
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload, over the jobs submitted in the window. None: nothing to compute it from.

    Percentiles interpolate linearly between the two nearest jobs (numpy's default), as pandas does, so
    that they compare with published simulators. JCT and queueing delay are of the jobs that ended; `jobs` is
    all that were submitted: ended + rejected + unfinished.

    Attributes:
        jobs: Jobs submitted.
        rejected: Jobs that can never run on this cluster.
        unfinished: Jobs that had not ended when the replay stopped.
        jct_mean_s: Mean of last end - submission, seconds; so its percentiles.
        queue_mean_s: Mean of first start - submission, seconds; so its percentiles and its maximum.
        makespan_s: Last end - first submission, seconds.
        gpu_utilisation_frac: Allocated GPU-seconds / capacity, from the first to the last submission; jobs
            submitted before the window count while they run in it.
        energy_kwh: None: no model of power yet.
        preemptions: Attempts that were stopped for another job's sake.
        decisions: Decisions that the scheduler took over the whole replay, warm-up included.
        decision_p99_us: 99th percentile of the time that a decision took; None where decisions were not
            timed one by one (compiled rules).
        wall_s: Wall time of the replay, seconds.
        by_gpus: By number of GPUs, smallest first.
        by_vc: By VC, `-` for jobs without one.
        by_source: Decisions by who took them; empty where that was not counted.
    """

    jobs: int
    rejected: int
    unfinished: int
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p99_s: float | None
    jct_p999_s: float | None
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    queue_p999_s: float | None
    queue_max_s: float | None
    makespan_s: float | None
    gpu_utilisation_frac: float | None
    energy_kwh: float | None
    preemptions: int
    decisions: int
    decision_p99_us: float | None
    wall_s: float
    by_gpus: dict[str, GroupMetrics]
    by_vc: dict[str, GroupMetrics]
    by_source: dict[str, int]


def jct_s(table: JobTable) -> Floats:
    """JCT of every job, (J,) seconds: last end - submission; nan where it did not end."""
    return np.asarray(table.end_s - table.trace.submit_s, dtype=np.float64)


def queue_s(table: JobTable) -> Floats:
    """Queueing delay of every job, (J,) seconds: first start - submission; nan where it did not start."""
    return np.asarray(table.start_s - table.trace.submit_s, dtype=np.float64)


def ended(table: JobTable) -> Mask:
    """Whether each job ended, (J,)."""
    return np.asarray(~np.isnan(table.end_s) & ~table.rejected, dtype=np.bool_)


def quantile(values: Floats, percent: float) -> float | None:
    """Percentile with linear interpolation between neighbours; None of nothing."""
    return float(np.percentile(values, percent, method="linear")) if len(values) else None


def mean(values: Floats) -> float | None:
    """Arithmetic mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def utilisation(table: JobTable, num_gpus: int, measured: Mask) -> float | None:
    """Allocated GPU-seconds / capacity between the first and the last submission of the measured jobs.

    Every job of the replay counts while it runs in that time. None where that time is zero.
    """
    times = table.trace.submit_s[measured]
    if not len(times) or times[-1] <= times[0]:
        return None
    first, last = float(times[0]), float(times[-1])
    started = ~np.isnan(table.start_s)
    start = table.start_s[started]
    end = np.where(np.isnan(table.end_s[started]), last, table.end_s[started])
    overlap_s = np.clip(np.minimum(end, last) - np.maximum(start, first), 0.0, None)
    gpu_seconds = float(np.sum(overlap_s * table.trace.num_gpus[started]))
    return gpu_seconds / (num_gpus * (last - first))


def by_size(table: JobTable, measured: Mask) -> dict[str, GroupMetrics]:
    """Metrics of each number of GPUs that occurs among the measured jobs, ascending."""
    sizes = table.trace.num_gpus
    return {f"{size:g}": group(table, measured & (sizes == size)) for size in np.unique(sizes[measured])}


def by_vc(table: JobTable, measured: Mask) -> dict[str, GroupMetrics]:
    """Metrics of each VC that occurs among the measured jobs, by name; `-`: without one."""
    vcs = table.trace.vc
    return {str(vc) or "-": group(table, measured & (vcs == vc)) for vc in np.unique(vcs[measured])}


def group(table: JobTable, which: Mask) -> GroupMetrics:
    """Metrics of some of the jobs."""
    done = which & ended(table)
    rejected = int(np.count_nonzero(which & table.rejected))
    jct, queue = jct_s(table)[done], queue_s(table)[done]
    return GroupMetrics(
        jobs=int(np.count_nonzero(which)),
        rejected=rejected,
        unfinished=int(np.count_nonzero(which)) - rejected - int(np.count_nonzero(done)),
        jct_mean_s=mean(jct),
        jct_p99_s=quantile(jct, 99),
        queue_mean_s=mean(queue),
        queue_p50_s=quantile(queue, 50),
        queue_p99_s=quantile(queue, 99),
    )


def schedule_metrics(
    table: JobTable, num_gpus: int, measured: Mask | None = None, *, wall_s: float = 0.0
) -> Metrics:
    """Everything that the report says of one replay.

    Args:
        table: The replayed jobs.
        num_gpus: GPUs of the cluster.
        measured: (J,) jobs of the window; None: all of them.
        wall_s: Wall time of the replay, seconds.
    """
    measured = np.ones(len(table.trace), dtype=np.bool_) if measured is None else measured
    total = group(table, measured)
    done = measured & ended(table)
    jct, queue = jct_s(table)[done], queue_s(table)[done]
    return Metrics(
        jobs=total.jobs,
        rejected=total.rejected,
        unfinished=total.unfinished,
        jct_mean_s=total.jct_mean_s,
        jct_p50_s=quantile(jct, 50),
        jct_p99_s=total.jct_p99_s,
        jct_p999_s=quantile(jct, 99.9),
        queue_mean_s=total.queue_mean_s,
        queue_p50_s=total.queue_p50_s,
        queue_p99_s=total.queue_p99_s,
        queue_p999_s=quantile(queue, 99.9),
        queue_max_s=quantile(queue, 100),
        makespan_s=float(table.end_s[done].max() - table.trace.submit_s[measured][0]) if len(jct) else None,
        gpu_utilisation_frac=utilisation(table, num_gpus, measured),
        energy_kwh=None,
        preemptions=0,
        decisions=int(table.decisions),
        decision_p99_us=quantile(np.asarray(table.decision_us, dtype=np.float64), 99),
        wall_s=wall_s,
        by_gpus=by_size(table, measured),
        by_vc=by_vc(table, measured),
        by_source={str(source): int(count) for source, count in table.by_source.items()},
    )


def mean_over_seeds(runs: list[Metrics]) -> Metrics:
    """The mean of every number over the runs of several seeds; None where a run knows none."""
    if len(runs) == 1:
        return runs[0]
    return msgspec.convert(_merged([msgspec.to_builtins(run) for run in runs]), Metrics)


def _merged(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merged([value.get(key, 0) for value in values]) for key in keys}
    if any(value is None for value in values):
        return None
    average = sum(values) / len(values)
    return round(average) if isinstance(values[0], int) else average
