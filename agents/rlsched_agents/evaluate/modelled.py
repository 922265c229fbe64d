"""Computes the metrics that only runs with models have: energy, GPU use, sharing and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.workload.load import trace_demands
from rlsched_envs.sim.modelling import Models

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.trace import Trace
    from rlsched_envs.sim.attempt_log import AttemptTable, ModelledAttempts
    from rlsched_envs.sim.bills import Bill
    from rlsched_envs.sim.job_table import JobTable
    from rlsched_envs.sim.modelling import Energy

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

J_PER_KWH: Final = 3.6e6
_ALONE: Final = 1.0 - 1e-6
"""A job whose mean share of its GPUs is below this value has shared GPUs."""


class PowerDownMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Results of power-down in the whole replay, including the warm-up.

    Waiting for a node to boot is queueing delay.

    Attributes:
        wake_up_events: Number of instants at which one or more sleeping nodes were woken.
        wake_ups_a_day: Wake-up events per day of the replay.
        nodes_booted: Number of node boots from sleep.
        asleep_node_h: Node-hours asleep.
        saved_kwh: Energy saved compared to nodes that stay on.
    """

    wake_up_events: int
    wake_ups_a_day: float
    nodes_booted: int
    asleep_node_h: float
    saved_kwh: float


class BillMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Cost (cluster's currency) or carbon (kg CO2e) of a run's electricity, including facility overhead.

    Attributes:
        jobs: Total of the measured jobs: their parts of the energy of their GPUs, and the energy of their
            busy cores, without idle power.
        per_job: Mean over the measured jobs that ended.
        cluster: Total of the whole cluster in the whole replay, including the warm-up.
        idle: The part of `cluster` that belongs to no job.
        by_vc: The part of `jobs` for each VC; `-` for jobs without a VC.
        by_user: The part of `jobs` for each user; `-` for jobs without a user.
        by_hour: The part of `cluster` in each hour of the day (UTC), from midnight.
    """

    jobs: float
    per_job: float | None
    cluster: float
    idle: float
    by_vc: dict[str, float]
    by_user: dict[str, float]
    by_hour: list[float]


class HourMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Energy, cost and carbon of the whole cluster in each hour (UTC) of a replay, including the warm-up.

    The values of each list add up to the total of the cluster. More than a year after the last submission,
    later hours are added to the hours of the last day.

    Attributes:
        from_s: Start of the first hour, seconds of the trace.
        energy_kwh: Energy, without the overhead of the facility.
        cost: Cost, in the cluster's currency; None: the price is unknown.
        carbon_kg: Carbon, kg CO2e; None: the carbon intensity is unknown.
    """

    from_s: float
    energy_kwh: list[float]
    cost: list[float] | None
    carbon_kg: list[float] | None


class PowerLimitMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How well a replay kept the power limit of the cluster file.

    Attributes:
        capped_h: Hours in which the limit lowered clocks.
        exceeded_h: Hours in which the cluster drew more than the limit.
        exceeded_kwh: Energy above the limit.
    """

    capped_h: float
    exceeded_h: float
    exceeded_kwh: float


def power_limit_metrics(table: JobTable) -> PowerLimitMetrics | None:
    """Return how well a replay kept its power limit; None without a limit."""
    kept = None if table.energy is None else table.energy.limit
    if kept is None:
        return None
    return PowerLimitMetrics(
        capped_h=kept.capped_s / 3600.0,
        exceeded_h=kept.exceeded_s / 3600.0,
        exceeded_kwh=kept.exceeded_j / J_PER_KWH,
    )


class ModelMetrics(NamedTuple):
    """Metrics that only a run with models has. The fields are documented in `metrics.Metrics`."""

    energy_kwh: float | None = None
    energy_per_job_kwh: float | None = None
    cluster_energy_kwh: float | None = None
    idle_energy_kwh: float | None = None
    replay_s: float | None = None
    gpu_used_frac: float | None = None
    shared_frac: float | None = None
    sm_clock_mean_frac: float | None = None
    peak_kw: float | None = None
    cost: BillMetrics | None = None
    carbon_kg: BillMetrics | None = None
    energy_by_hour_kwh: list[float] | None = None
    by_hour: HourMetrics | None = None


def hour_metrics(energy: Energy) -> HourMetrics | None:
    """Return a replay's energy and bills by hour, from the first to the last hour with energy."""
    if energy.hours_j is None or not energy.hours_j.any():
        return None
    used = np.flatnonzero(energy.hours_j)
    first, end = int(used[0]), int(used[-1]) + 1
    cost, carbon = (
        None if bill is None else bill.hours[first:end].tolist() for bill in (energy.cost, energy.carbon)
    )
    return HourMetrics(
        from_s=energy.hours_from_s + 3600.0 * first,
        energy_kwh=(energy.hours_j[first:end] / J_PER_KWH).tolist(),
        cost=cost,
        carbon_kg=carbon,
    )


def bill_metrics(table: JobTable, bill: Bill | None, measured: Mask) -> BillMetrics | None:
    """Return the metrics of a bill (cost or carbon); None if the price or carbon intensity is unknown."""
    if bill is None:
        return None
    done = measured & ~np.isnan(table.end_s) & ~table.rejected
    of_jobs = bill.jobs[measured]
    return BillMetrics(
        jobs=float(of_jobs.sum()),
        per_job=float(bill.jobs[done].mean()) if done.any() else None,
        cluster=bill.cluster,
        idle=bill.idle,
        by_vc=_sums(table.trace.vc[measured], of_jobs),
        by_user=_sums(table.trace.user[measured], of_jobs),
        by_hour=bill.by_hour.tolist(),
    )


def _sums(owner: NDArray[np.str_], values: Floats) -> dict[str, float]:
    """Return the sum of the values of each owner (VC or user), by name; `-` stands for no owner."""
    names, which = np.unique(np.where(owner == "", "-", owner), return_inverse=True)
    return dict(zip(names.tolist(), np.bincount(which, values, len(names)).tolist(), strict=True))


def power_down_metrics(table: JobTable) -> PowerDownMetrics | None:
    """Return the results of power-down in a replay; None if no node could sleep."""
    slept, energy = table.slept, table.energy
    if slept is None or energy is None:
        return None
    days = energy.span_s / 86400.0
    return PowerDownMetrics(
        wake_up_events=slept.wake_up_events,
        wake_ups_a_day=slept.wake_up_events / days if days > 0 else 0.0,
        nodes_booted=slept.nodes_booted,
        asleep_node_h=slept.asleep_node_s / 3600.0,
        saved_kwh=slept.saved_j / J_PER_KWH,
    )


def books_of(table: JobTable) -> tuple[AttemptTable, ModelledAttempts] | None:
    """Return the attempts of a run with models, and their energy and GPU time; None without models."""
    attempts = table.attempts
    return None if attempts.books is None else (attempts, attempts.books)


def gpus_held(trace: Trace, attempts: AttemptTable) -> Floats:
    """Return the (S,) number of GPUs of each attempt; 1 for a job that requests a part of one GPU."""
    return np.ceil(trace.num_gpus[attempts.job])


def model_metrics(table: JobTable, num_gpus: int, measured: Mask) -> ModelMetrics:
    """Return energy, GPU use, sharing and clocks of a replay; all fields None without models.

    Args:
        table: The replayed jobs.
        num_gpus: GPUs of the cluster.
        measured: (J,) whether each job is in the window.
    """
    found = books_of(table)
    if found is None or table.energy is None:
        return ModelMetrics()
    attempts, books = found
    job_kwh = table.energy.job_j / J_PER_KWH
    done = measured & ~np.isnan(table.end_s) & ~table.rejected
    gpus = gpus_held(table.trace, attempts)
    mine = measured[attempts.job] & (gpus > 0) & ~np.isnan(attempts.end_s)
    held_gpu_s = float(np.sum((attempts.end_s - attempts.start_s)[mine] * gpus[mine]))
    shares, _ = mean_of_jobs(table, books)
    whole, hour_j = done & (table.trace.num_gpus >= 1), table.energy.hour_j
    return ModelMetrics(
        energy_kwh=float(job_kwh[measured].sum()),
        energy_per_job_kwh=float(job_kwh[done].mean()) if done.any() else None,
        cluster_energy_kwh=table.energy.cluster_j / J_PER_KWH,
        idle_energy_kwh=table.energy.idle_j / J_PER_KWH,
        replay_s=table.energy.span_s,
        gpu_used_frac=_used(table, books, num_gpus, measured),
        shared_frac=float(np.mean(shares[whole] < _ALONE)) if whole.any() else None,
        sm_clock_mean_frac=float(np.sum(books.clock_s[mine] * gpus[mine])) / held_gpu_s
        if held_gpu_s > 0
        else None,
        peak_kw=table.energy.peak_w / 1000.0,
        cost=bill_metrics(table, table.energy.cost, measured),
        carbon_kg=bill_metrics(table, table.energy.carbon, measured),
        energy_by_hour_kwh=None if hour_j is None else (hour_j / J_PER_KWH).tolist(),
        by_hour=hour_metrics(table.energy),
    )


def _used(table: JobTable, books: ModelledAttempts, num_gpus: int, measured: Mask) -> float | None:
    """Return busy GPU-seconds / capacity, from the first to the last submission of the measured jobs.

    An attempt that lies partly outside this time is included in proportion.
    """
    times = table.trace.submit_s[measured]
    if not len(times) or times[-1] <= times[0]:
        return None
    first, last = float(times[0]), float(times[-1])
    attempts = table.attempts
    inside_s = np.clip(np.minimum(attempts.end_s, last) - np.maximum(attempts.start_s, first), 0.0, None)
    gpu_s = np.nansum(inside_s * used_gpus(table, attempts, books))
    return float(gpu_s) / (num_gpus * (last - first))


def used_gpus(table: JobTable, attempts: AttemptTable, books: ModelledAttempts) -> Floats:
    """Return the (S,) mean number of busy GPUs of each attempt; 0 if the attempt runs or took no time."""
    length_s = attempts.end_s - attempts.start_s
    used = np.zeros(len(attempts))
    np.divide(books.used_s, length_s, out=used, where=length_s > 0)
    return used * gpus_held(table.trace, attempts)


def mean_of_jobs(table: JobTable, books: ModelledAttempts) -> tuple[Floats, Floats]:
    """Return the (J,) mean share that each job had of its GPUs, and the (J,) mean SM clock of these GPUs.

    Both are fractions, averaged over the time in which the job had GPUs; nan for jobs that never had GPUs.
    """
    attempts, jobs = table.attempts, len(table.trace)
    timed = np.flatnonzero((attempts.end_s > attempts.start_s) & (table.trace.num_gpus[attempts.job] > 0))

    def total(values: Floats) -> Floats:
        sums = np.bincount(attempts.job[timed], values[timed], minlength=jobs)
        return np.asarray(sums, np.float64)

    held_s = total(attempts.end_s - attempts.start_s)
    with np.errstate(invalid="ignore"):
        return total(books.share_s) / held_s, total(books.clock_s) / held_s


class Basis:
    """Determines which figures of the catalogue the results of the measured jobs depend on.

    Args:
        trace: J jobs.
        spec: The cluster of the run.
        measured: (J,) whether each job is in the window.
        models: The models of the run.
    """

    def __init__(self, trace: Trace, spec: ClusterSpec, measured: Mask, models: Models) -> None:
        self._catalogue = models.catalogue()
        drawn = self._catalogue.draw(trace, models.workload_seed)
        self._workloads = drawn[measured & (trace.num_gpus > 0)]
        self._gangs = drawn[measured & (trace.num_gpus > 1)]
        self._kinds = sorted({group.gpu_type for group in spec.nodes if group.gpus})
        self._has_cores = any(group.cpus for group in spec.nodes)
        self._has_slices = spec.num_slices > 0

    def measured_frac(self, metrics: ModelMetrics) -> float | None:
        """Return the fraction of the figures behind a result that are measured or fitted, not assumed.

        A figure of a workload is counted once for each measured job with this workload, and only if the
        result depends on it: for example, sensitivity to clocks only if clocks were lowered.
        """
        fields = ["util_frac", "dynamic_w"]
        if metrics.shared_frac or self._has_slices:
            fields.append("memory_mib")
        if metrics.shared_frac:
            fields += ["sensitivity", "pressure"]
        if metrics.sm_clock_mean_frac is not None and metrics.sm_clock_mean_frac < _ALONE:
            fields.append("clock_bound")
        fields += ["speed"] if len(self._kinds) > 1 or self._has_slices else []
        fields += ["cores_each"] if self._has_cores else []
        sure, used = self._catalogue.cells_behind(self._workloads, self._kinds, fields)
        of_gangs = self._catalogue.cells_behind(self._gangs, self._kinds, ["node_penalty"])
        sure, used = sure + of_gangs[0], used + of_gangs[1]
        return sure / used if used else None


def asked_shares(trace: Trace) -> Floats:
    """Return the (J,) part of a GPU, 0 to 1, that each job requests on each of its GPUs; nan without GPUs."""
    demands, which = trace_demands(trace)
    asked = [one.share_milli / WHOLE_GPU_MILLI if one.gpus else np.nan for one in demands]
    return np.array(asked, np.float64)[which]
