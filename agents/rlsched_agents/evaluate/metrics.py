"""Computes the metrics of a replayed schedule from its `JobTable`."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched_agents.evaluate.modelled import (
    Basis,
    BillMetrics,
    HourMetrics,
    PowerDownMetrics,
    PowerLimitMetrics,
    model_metrics,
    power_down_metrics,
    power_limit_metrics,
)
from rlsched_agents.evaluate.occupancy import (
    Fragmentation,
    OverTime,
    fragmentation,
    gpu_holds,
    over_time,
    step_edges,
)
from rlsched_envs.sim.attempt_arrays import CANCELLED, ENDED, FAILED, ONGOING, PREEMPTED, TIMEOUT
from rlsched_envs.sim.engine import run_time_s

if TYPE_CHECKING:
    from rlsched_envs.sim.job_table import JobTable

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Jobs = NDArray[np.intp] | slice
"""Selects some jobs: their (J,) indices, or a slice."""

ALL: Final = slice(None)
END_NAMES: Final = {"completed": ENDED, "timeout": TIMEOUT, "failed": FAILED, "cancelled": CANCELLED}

SLOWDOWN_THRESHOLD_S: Final = 10.0
"""Lower limit of run times in `bounded_slowdown`, seconds (Feitelson 2001)."""


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the jobs of one size or one VC. Times are in seconds; None if no job of the group ended.

    Fields with a default can be missing in older reports.

    Attributes:
        jobs: Number of jobs submitted.
        rejected: Number of jobs that can never run.
        unfinished: Number of jobs that had not ended when the replay stopped.
        jct_mean_s: Mean JCT (last end - submission) of the jobs that ended.
        jct_p99_s: 99th percentile of JCT; other percentiles are named in the same way.
        queue_mean_s: Mean queueing delay (`queue_s`) of the jobs that ended.
        queue_p50_s: Median queueing delay; other percentiles are named in the same way.
        queue_p99_s: 99th percentile of the queueing delay.
        queue_max_s: Longest queueing delay, a measure of starvation.
        bounded_slowdown_mean: Mean `bounded_slowdown` of the jobs that ended.
        bounded_slowdown_p99: 99th percentile of `bounded_slowdown`.
        fragmentation_frac: Fraction of the free GPU-seconds that a job of this size could not have used
            (`occupancy.fragmentation`). None in groups by VC.
    """

    jobs: int
    rejected: int
    unfinished: int
    jct_mean_s: float | None
    jct_p99_s: float | None
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    jct_p50_s: float | None = None
    jct_p90_s: float | None = None
    jct_p999_s: float | None = None
    queue_p90_s: float | None = None
    queue_p999_s: float | None = None
    queue_max_s: float | None = None
    bounded_slowdown_mean: float | None = None
    bounded_slowdown_p99: float | None = None
    fragmentation_frac: float | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one policy on one workload, for the jobs submitted in the window. None: no data.

    JCT and queueing delay cover the jobs that ended. Percentiles are interpolated linearly, as by default in
    numpy. Fields with a default can be missing in older reports.

    Attributes:
        jobs: Number of jobs submitted: ended + cancelled + rejected + unfinished.
        rejected: Number of jobs that can never run on this cluster.
        unfinished: Number of jobs that had not ended when the replay stopped.
        jct_mean_s: Mean JCT (last end - submission), seconds. `jct_p50_s`, `jct_p99_s` and so on are its
            percentiles.
        queue_mean_s: Mean queueing delay (`queue_s`), seconds. `queue_p50_s` and so on are its percentiles,
            and `queue_max_s` is its maximum (a measure of starvation).
        makespan_s: Last end - first submission, seconds.
        gpu_utilisation_frac: Allocated GPU-seconds / capacity, from the first to the last submission.
            Includes jobs submitted before the window. A shared GPU is counted once.
        energy_kwh: Energy of the measured jobs: their parts of the energy of their GPUs, and the energy of
            their busy cores, without idle power. None without models.
        preemptions: Number of preemptions of measured jobs.
        decisions: Number of decisions of the scheduler in the whole replay, including the warm-up.
        decision_p99_us: 99th percentile of the time per decision, microseconds; None if decisions were not
            timed individually (compiled rules).
        wall_s: Wall time of the replay without compiling, seconds.
        by_gpus: Metrics by number of GPUs, smallest first.
        by_vc: Metrics by VC, `-` for jobs without a VC.
        by_source: Number of decisions, by the component that made them (`rlsched.decide.record.Source`);
            empty if not counted.
        bounded_slowdown_mean: Mean `bounded_slowdown`; `bounded_slowdown_p99` is the 99th percentile.
        lost_gpu_s: GPU-seconds of measured jobs without lasting progress: work lost to preemptions and
            failures, and restart costs. Work of a job that reaches its time limit is not lost.
        decision_p50_us: Median time per decision, microseconds; None if `decision_p99_us` is None.
        gpu_used_frac: As `gpu_utilisation_frac`, with each allocated GPU weighted by its utilisation. None
            without models.
        fragmentation_frac: Fraction of the free GPU-seconds, from the first to the last submission, that a
            job drawn at random could not have used (`occupancy.fragmentation`). None if placements were not
            kept, or no GPU was free.
        over_time: Allocation and fragmentation in steps of time; None if the time span is zero.
        migrations: Number of `preemptions` after which the job started again at the same instant.
        by_end: Number of jobs by outcome: `completed`, `timeout` (killed at the time limit), `failed` (with
            no retry left) or `cancelled` (never started, because a dependency could not be met).
        energy_per_job_kwh: Mean energy of the measured jobs that ended. This field and the following fields
            are None without models.
        cluster_energy_kwh: Energy of the whole cluster in the whole replay (`replay_s`), including the
            warm-up.
        idle_energy_kwh: The part of `cluster_energy_kwh` that belongs to no job: nodes, and GPUs without a
            job.
        replay_s: Time from the first replayed submission to the last event, seconds.
        shared_frac: Fraction of the ended jobs with whole GPUs that shared these GPUs at some time.
        sm_clock_mean_frac: Mean SM clock of the GPUs of measured jobs, relative to the maximum.
        measured_cells_frac: Fraction of the catalogue's figures behind the result that are measured or
            fitted, not assumed (`modelled.Basis`).
        power_down: Results of power-down. None without a power-down rule.
        floor_mean_s: Mean run time on unshared GPUs at full speed, of the jobs that ended. JCT can be
            shorter, because idle cores can make a job faster.
        delay_mean_s: Mean JCT less `floor_mean_s`: waiting before the first start and after preemptions,
            repeated work, and slowdown by sharing and lower clocks.
        peak_kw: Highest power of the whole cluster in the whole replay, as a mean over about 15 minutes.
        power_limit: How well the power limit was kept in the whole replay. None without a limit.
        cost: Cost of the electricity, in the currency of the cluster file's [energy]. None without models, or
            without a price.
        carbon_kg: Carbon of the electricity, kg CO2e. None without models, or without a carbon intensity.
        energy_by_hour_kwh: Energy of the whole cluster in the whole replay in each hour of the day (UTC),
            from midnight. None without models, or without a series in the cluster file's [energy].
        by_hour: Energy, cost and carbon of the whole cluster in each hour of the replay. None as for
            `energy_by_hour_kwh`.
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
    jct_p90_s: float | None = None
    queue_p90_s: float | None = None
    bounded_slowdown_mean: float | None = None
    bounded_slowdown_p99: float | None = None
    lost_gpu_s: float = 0.0
    migrations: int = 0
    decision_p50_us: float | None = None
    gpu_used_frac: float | None = None
    fragmentation_frac: float | None = None
    over_time: OverTime | None = None
    by_end: dict[str, int] = {}
    energy_per_job_kwh: float | None = None
    cluster_energy_kwh: float | None = None
    idle_energy_kwh: float | None = None
    replay_s: float | None = None
    shared_frac: float | None = None
    sm_clock_mean_frac: float | None = None
    measured_cells_frac: float | None = None
    power_down: PowerDownMetrics | None = None
    floor_mean_s: float | None = None
    delay_mean_s: float | None = None
    peak_kw: float | None = None
    power_limit: PowerLimitMetrics | None = None
    cost: BillMetrics | None = None
    carbon_kg: BillMetrics | None = None
    energy_by_hour_kwh: list[float] | None = None
    by_hour: HourMetrics | None = None


def jct_s(table: JobTable, jobs: Jobs = ALL) -> Floats:
    """Return the (J,) JCT of the jobs, last end - submission, seconds; nan if a job did not end."""
    return np.asarray(table.end_s[jobs] - table.trace.submit_s[jobs], dtype=np.float64)


def queue_s(table: JobTable, jobs: Jobs = ALL) -> Floats:
    """Return the (J,) queueing delay of the jobs, first start - submission, seconds; nan without a start.

    For a job with dependencies or in an array with a limit, the delay begins when the job becomes eligible,
    as in Slurm's accounting (`sacct`, field Eligible).
    """
    since_s = table.trace.submit_s if table.eligible_s is None else table.eligible_s
    return np.asarray(table.start_s[jobs] - since_s[jobs], dtype=np.float64)


def bounded_slowdown(table: JobTable, jobs: Jobs = ALL) -> Floats:
    """Return the (J,) bounded slowdown of the jobs: max(1, JCT / max(duration, 10 s)); nan without an end.

    Source: Feitelson, «Metrics for Parallel Job Scheduling and Their Convergence», JSSPP 2001 (LNCS 2221, pp.
    188-205).
    """
    run_s = np.maximum(table.trace.duration_s[jobs], SLOWDOWN_THRESHOLD_S)
    return np.maximum(1.0, jct_s(table, jobs) / run_s)


def ends(table: JobTable, which: Mask) -> dict[str, int]:
    """Count the selected jobs that ended or were cancelled, by outcome (`END_NAMES`)."""
    by = table.ended_by
    if by is None:
        by = np.where(has_ended(table), ENDED, ONGOING)
    return {name: int(np.count_nonzero(which & (by == code))) for name, code in END_NAMES.items()}


def migrations(table: JobTable, which: Mask) -> int:
    """Count how often a selected job was preempted and started again at the same instant."""
    attempts = table.attempts
    order = np.lexsort((attempts.attempt, attempts.job))
    job, stopped = attempts.job[order], (attempts.reason[order] == PREEMPTED) & which[attempts.job[order]]
    goes_on = (job[1:] == job[:-1]) & (attempts.start_s[order][1:] == attempts.end_s[order][:-1])
    return int(np.count_nonzero(stopped[:-1] & goes_on))


def interruptions(table: JobTable, which: Mask) -> tuple[int, float]:
    """Return the number of preemptions of the selected jobs, and the GPU-seconds that these jobs lost.

    The loss is the sum of (work done - useful work) x GPUs over the attempts that ended. If
    `AttemptTable.done_s` is None, the work done is the time from start to end.
    """
    attempts = table.attempts
    mine = which[attempts.job] & ~np.isnan(attempts.end_s)
    done_s = attempts.end_s - attempts.start_s if attempts.done_s is None else attempts.done_s
    lost_s = np.maximum(done_s[mine] - attempts.useful_s[mine], 0.0)  # `done_s` has rounding errors
    gpus = table.trace.num_gpus[attempts.job[mine]]
    return int(np.count_nonzero(attempts.reason[mine] == PREEMPTED)), float(np.sum(lost_s * gpus))


def has_ended(table: JobTable) -> Mask:
    """Return the (J,) mask of the jobs that ended."""
    return np.asarray(~np.isnan(table.end_s) & ~table.rejected, dtype=np.bool_)


def quantile(values: Floats, percent: float) -> float | None:
    """Return a percentile of the values, interpolated linearly; None if there are no values.

    `percent`: 0 to 100.
    """
    return quantiles(values, [percent])[0]


def quantiles(values: Floats, percents: list[float]) -> list[float] | list[None]:
    """Return several percentiles (0 to 100) of the values; if there are no values, each is None."""
    if not len(values):
        return [None] * len(percents)
    found: list[float] = np.percentile(values, percents, method="linear").tolist()
    return found


def mean(values: Floats) -> float | None:
    """Return the arithmetic mean; None if there are no values."""
    return float(np.mean(values)) if len(values) else None


def utilisation(table: JobTable, num_gpus: int, measured: Mask) -> float | None:
    """Return allocated GPU-seconds / capacity, from the first to the last submission of the measured jobs.

    All jobs of the replay that run in this time are included. A shared GPU is counted once. None if all
    measured jobs were submitted at the same instant.
    """
    times = table.trace.submit_s[measured]
    if not len(times) or times[-1] <= times[0]:
        return None
    first, last = float(times[0]), float(times[-1])
    held = gpu_holds(table)
    end = np.where(np.isnan(held.end_s), last, held.end_s)
    gpus = table.trace.num_gpus[table.attempts.job[held.attempt]]
    return used_frac(held.start_s, end, gpus, (first, last), num_gpus)


def used_frac(
    start_s: Floats, end_s: Floats, gpus: Floats, span_s: tuple[float, float], num_gpus: int
) -> float:
    """Return the fraction of a time span's GPU-seconds that H allocations use; 0 for an empty span.

    Args:
        start_s: (H,) starts of the allocations, seconds.
        end_s: (H,) ends of the allocations, seconds.
        gpus: (H,) number of GPUs of each allocation.
        span_s: Start and end of the span, seconds.
        num_gpus: GPUs of the cluster.
    """
    first, last = span_s
    if last <= first:
        return 0.0
    overlap_s = np.clip(np.minimum(end_s, last) - np.maximum(start_s, first), 0.0, None)
    return float(np.sum(overlap_s * gpus)) / (num_gpus * (last - first))


def by_size(
    table: JobTable, measured: Mask, fragments: Fragmentation | None = None
) -> dict[str, GroupMetrics]:
    """Return the metrics of the measured jobs by number of GPUs, ascending."""
    sizes = table.trace.num_gpus
    useless = {} if fragments is None else fragments.by_gpus_frac
    return {
        f"{size:g}": group(table, measured & (sizes == size), fragmentation_frac=useless.get(size))
        for size in np.unique(sizes[measured]).tolist()
    }


def by_vc(table: JobTable, measured: Mask) -> dict[str, GroupMetrics]:
    """Return the metrics of the measured jobs by VC name; `-` stands for no VC."""
    vcs = table.trace.vc
    return {str(vc) or "-": group(table, measured & (vcs == vc)) for vc in np.unique(vcs[measured])}


def group(table: JobTable, which: Mask, *, fragmentation_frac: float | None = None) -> GroupMetrics:
    """Return the metrics of the jobs in mask `which`; their field `fragmentation_frac` is the argument."""
    done = np.flatnonzero(which & has_ended(table))
    rejected = int(np.count_nonzero(which & table.rejected))
    cancelled = 0 if table.ended_by is None else int(np.count_nonzero(which & (table.ended_by == CANCELLED)))
    jct, queue, slowdown = jct_s(table, done), queue_s(table, done), bounded_slowdown(table, done)
    jct_p50_s, jct_p90_s, jct_p99_s, jct_p999_s = quantiles(jct, [50, 90, 99, 99.9])
    queue_p50_s, queue_p90_s, queue_p99_s, queue_p999_s = quantiles(queue, [50, 90, 99, 99.9])
    return GroupMetrics(
        jobs=int(np.count_nonzero(which)),
        rejected=rejected,
        unfinished=int(np.count_nonzero(which)) - rejected - len(done) - cancelled,
        jct_mean_s=mean(jct),
        jct_p99_s=jct_p99_s,
        queue_mean_s=mean(queue),
        queue_p50_s=queue_p50_s,
        queue_p99_s=queue_p99_s,
        jct_p50_s=jct_p50_s,
        jct_p90_s=jct_p90_s,
        jct_p999_s=jct_p999_s,
        queue_p90_s=queue_p90_s,
        queue_p999_s=queue_p999_s,
        queue_max_s=float(queue.max()) if len(queue) else None,
        bounded_slowdown_mean=mean(slowdown),
        bounded_slowdown_p99=quantile(slowdown, 99),
        fragmentation_frac=fragmentation_frac,
    )


def schedule_metrics(
    table: JobTable,
    num_gpus: int,
    measured: Mask | None = None,
    *,
    wall_s: float = 0.0,
    basis: Basis | None = None,
) -> Metrics:
    """Return all metrics of one replay.

    Args:
        table: The replayed jobs.
        num_gpus: GPUs of the cluster.
        measured: (J,) jobs of the window; None: all jobs.
        wall_s: Wall time of the replay, seconds.
        basis: Determines how many of the catalogue's figures behind the result are measured; None: not
            reported.
    """
    measured = np.ones(len(table.trace), dtype=np.bool_) if measured is None else measured
    total = group(table, measured)
    preemptions, lost_gpu_s = interruptions(table, measured)
    done = measured & has_ended(table)
    floor_s = run_time_s(table.trace)[done]
    decision_us = np.asarray(table.decision_us, dtype=np.float64)
    edges = step_edges(table, measured)
    fragments = None if edges is None else fragmentation(table, edges, measured)
    modelled = model_metrics(table, num_gpus, measured)
    return Metrics(
        jobs=total.jobs,
        rejected=total.rejected,
        unfinished=total.unfinished,
        jct_mean_s=total.jct_mean_s,
        jct_p50_s=total.jct_p50_s,
        jct_p99_s=total.jct_p99_s,
        jct_p999_s=total.jct_p999_s,
        queue_mean_s=total.queue_mean_s,
        queue_p50_s=total.queue_p50_s,
        queue_p99_s=total.queue_p99_s,
        queue_p999_s=total.queue_p999_s,
        queue_max_s=total.queue_max_s,
        makespan_s=float(table.end_s[done].max() - table.trace.submit_s[measured][0]) if done.any() else None,
        gpu_utilisation_frac=utilisation(table, num_gpus, measured),
        energy_kwh=modelled.energy_kwh,
        preemptions=preemptions,
        decisions=int(table.decisions),
        decision_p99_us=quantile(decision_us, 99),
        wall_s=wall_s,
        by_gpus=by_size(table, measured, fragments),
        by_vc=by_vc(table, measured),
        by_source={str(source): int(count) for source, count in table.by_source.items()},
        jct_p90_s=total.jct_p90_s,
        queue_p90_s=total.queue_p90_s,
        bounded_slowdown_mean=total.bounded_slowdown_mean,
        bounded_slowdown_p99=total.bounded_slowdown_p99,
        lost_gpu_s=lost_gpu_s,
        migrations=migrations(table, measured),
        decision_p50_us=quantile(decision_us, 50),
        gpu_used_frac=modelled.gpu_used_frac,
        fragmentation_frac=None if fragments is None else fragments.total_frac,
        over_time=None if edges is None else over_time(table, edges, fragments),
        by_end=ends(table, measured),
        energy_per_job_kwh=modelled.energy_per_job_kwh,
        cluster_energy_kwh=modelled.cluster_energy_kwh,
        idle_energy_kwh=modelled.idle_energy_kwh,
        replay_s=modelled.replay_s,
        shared_frac=modelled.shared_frac,
        sm_clock_mean_frac=modelled.sm_clock_mean_frac,
        measured_cells_frac=None if basis is None else basis.measured_frac(modelled),
        power_down=power_down_metrics(table),
        floor_mean_s=mean(floor_s),
        delay_mean_s=mean(jct_s(table)[done] - floor_s),
        peak_kw=modelled.peak_kw,
        power_limit=power_limit_metrics(table),
        cost=modelled.cost,
        carbon_kg=modelled.carbon_kg,
        energy_by_hour_kwh=modelled.energy_by_hour_kwh,
        by_hour=modelled.by_hour,
    )


def mean_over_seeds(runs: list[Metrics]) -> Metrics:
    """Return the mean of each metric over runs with several seeds; None if the metric is None in a run."""
    if len(runs) == 1:
        return runs[0]
    return msgspec.convert(_merged([msgspec.to_builtins(run) for run in runs]), Metrics)


def _merged(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merged([value.get(key, 0) for value in values]) for key in keys}
    if isinstance(values[0], list):
        # lists by hour of replays that end at different times have different lengths
        return [_merged(list(step)) for step in zip_longest(*values, fillvalue=0.0)]
    average = sum(values) / len(values)
    return round(average) if isinstance(values[0], int) else average
