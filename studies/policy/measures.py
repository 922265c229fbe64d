"""Measures of the rows of the bar in addition to `Metrics`: delay, groups of jobs, sharing, GPU energy.

A job's *delay* is its JCT minus its unshared run time at full clock: queueing, slowdown by co-location and
clocks, and the cost of preemptions. If jobs start once and run at full speed, it is the queueing delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.models.power import NodePower, gpu_models
from rlsched.workload.describe import spearman
from rlsched_agents.evaluate.build import paired_runs
from rlsched_agents.evaluate.metrics import has_ended, jct_s, mean, quantile
from rlsched_agents.evaluate.modelled import J_PER_KWH, mean_of_jobs
from rlsched_agents.evaluate.pairs import Ratio, mean_ratio
from rlsched_envs.sim.engine import PredictedTimes, run_time_s
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

GPUS_ALONE: Final = Models(
    node_power=NodePower(base_w=0.0, cpu_idle_w_per_core=0.0, cpu_active_w_per_core=0.0)
)
"""The default draw of workloads; only the power of GPUs is counted. No decision depends on the
rest."""
KEPT_FRAC: Final = 0.85
"""Speed that a sharing job should keep."""
SIZES: Final = (("1", 0, 1), ("2-4", 1, 4), ("5-7", 4, 7), ("8 and more", 7, float("inf")))
"""(label, above, up to) GPUs of a job."""
LONGEST: Final = "longest tenth"

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class GroupDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Mean JCT and delay of a group of jobs that ended.

    Attributes:
        jobs: Number of jobs in the group.
        jct_mean_s: Mean JCT of the group; None without jobs.
        delay_mean_s: Mean delay of the group.
    """

    jobs: int
    jct_mean_s: float | None
    delay_mean_s: float | None


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one case, over the measured jobs that ended; several seeds are pooled.

    Attributes:
        delay_mean_s: Mean delay. The next fields are percentiles and the maximum of the delay.
        delay_ratio: By reference: mean delay / the reference's, with its interval over days.
        groups: By number of GPUs (`SIZES`), and the longest-running tenth of the measured jobs.
        rank_correlation: Spearman's, of predicted and true run times of the measured jobs.
        shared_jobs: Number of jobs with whole GPUs that shared them for a time. This field and the next ones
            are None without models.
        kept_frac: Share of these jobs with a mean speed, over all their time on GPUs, of `KEPT_FRAC` or more.
        gpu_kwh: Energy of all GPUs over the whole replay, idle ones too.
        replay_s: Seconds from the first replayed submission to the last event.
        gpus_idle_w: Power of all GPUs without jobs, W.
    """

    delay_mean_s: float | None
    delay_p99_s: float | None
    delay_p999_s: float | None
    delay_max_s: float | None
    delay_ratio: dict[str, Ratio | None]
    groups: dict[str, GroupDelay]
    rank_correlation: float | None
    shared_jobs: float | None = None
    kept_frac: float | None = None
    gpu_kwh: float | None = None
    replay_s: float | None = None
    gpus_idle_w: float | None = None


def delay_s(table: JobTable) -> Floats:
    """Delay of every job, (J,) seconds; nan if it did not end. Below 0 if idle cores made it faster."""
    return jct_s(table) - run_time_s(table.trace)


def measures_of(
    tables: Sequence[JobTable],
    references: dict[str, list[JobTable]],
    measured: Mask,
    predictions: PredictedTimes,
    spec: ClusterSpec,
) -> Measures:
    """Return the measures of a policy's replays, one replay per seed.

    Args:
        tables: The policy's tables.
        references: Tables of the references, on the same jobs.
        measured: (J,) jobs of the window.
        predictions: (J,) predicted run times of these jobs.
        spec: The cluster.
    """
    run_s = run_time_s(tables[0].trace)
    delays = _pooled(tables, measured, delay_s)
    speeds = [one for one in (shared_speeds(table, measured) for table in tables) if one is not None]
    energies = [table.energy for table in tables if table.energy is not None]
    shared = np.concatenate(speeds) if speeds else np.empty(0)
    return Measures(
        delay_mean_s=mean(delays),
        delay_p99_s=quantile(delays, 99),
        delay_p999_s=quantile(delays, 99.9),
        delay_max_s=quantile(delays, 100),
        delay_ratio={
            name: mean_ratio(*paired_runs(list(tables), runs), measured, delay_s)
            for name, runs in references.items()
        },
        groups={
            label: _group(tables, measured & mine) for label, mine in groups(tables[0], measured).items()
        },
        rank_correlation=spearman(predictions.predicted_s[measured], run_s[measured]),
        shared_jobs=len(shared) / len(speeds) if speeds else None,
        kept_frac=float(np.mean(shared >= KEPT_FRAC)) if len(shared) else None,
        gpu_kwh=float(np.mean([one.cluster_j for one in energies])) / J_PER_KWH if energies else None,
        replay_s=float(np.mean([one.span_s for one in energies])) if energies else None,
        gpus_idle_w=idle_w(spec) if energies else None,
    )


def groups(table: JobTable, measured: Mask) -> dict[str, Mask]:
    """(J,) members of each group."""
    gpus, run_s = table.trace.num_gpus, run_time_s(table.trace)
    found = {label: (gpus > above) & (gpus <= most) for label, above, most in SIZES}
    return found | {LONGEST: run_s >= np.quantile(run_s[measured], 0.9)}


def shared_speeds(table: JobTable, measured: Mask) -> Floats | None:
    """Mean speed of each measured job with whole GPUs that ended and shared them for a time; None: no models.

    Work over time on GPUs, restarts included on both sides, so that a preemption is not counted as a
    slowdown; a gang that is spread over more nodes is slower too.
    """
    attempts = table.attempts
    if attempts.books is None or attempts.done_s is None:
        return None
    shares, _ = mean_of_jobs(table, attempts.books)
    timed = np.flatnonzero(attempts.end_s > attempts.start_s)
    jobs, length_s = attempts.job[timed], (attempts.end_s - attempts.start_s)[timed]
    held_s = np.bincount(jobs, length_s, minlength=len(shares))
    done_s = np.bincount(jobs, attempts.done_s[timed], minlength=len(shares))
    which = measured & has_ended(table) & (table.trace.num_gpus >= 1) & (shares < 1.0 - 1e-6) & (held_s > 0)
    return np.asarray(done_s[which] / held_s[which], np.float64)


def idle_w(spec: ClusterSpec) -> float:
    """Power of all GPUs of a cluster without jobs, W."""
    return sum(
        float(gpu_models([group.gpu_type]).idle_w[0]) * group.count * group.gpus for group in spec.nodes
    )


def _pooled(tables: Sequence[JobTable], which: Mask, measure: Callable[[JobTable], Floats]) -> Floats:
    """A measure of the jobs that ended, of all seeds together."""
    return np.concatenate([measure(table)[which & has_ended(table)] for table in tables])


def _group(tables: Sequence[JobTable], which: Mask) -> GroupDelay:
    jct, delay = _pooled(tables, which, jct_s), _pooled(tables, which, delay_s)
    return GroupDelay(jobs=len(jct) // len(tables), jct_mean_s=mean(jct), delay_mean_s=mean(delay))
