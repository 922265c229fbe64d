"""Creates the attempt log of a run from a trace, and reads the attempts and their GPUs from a log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.workload.trace import Trace, dependencies, failures
from rlsched_envs.sim import attempt_arrays as kernels
from rlsched_envs.sim.attempt_arrays import AttemptArrays
from rlsched_envs.sim.node_events import NodeEvent

UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True)
class PreemptionCosts:
    """Restart costs of jobs for which the trace has no `restart_s`.

    Each attempt after the first takes longer by the restart cost. The defaults are from Lucid's simulator:
    40 s for a preemption, 60 s for jobs of more than 8 GPUs (artifact of Hu et al., «Lucid: A Non-intrusive,
    Scalable and Interpretable Scheduler for Deep Learning Training Jobs», ASPLOS 2023).

    Attributes:
        restart_s: Restart cost of a job with up to `large_gpus` GPUs, seconds.
        restart_large_s: Restart cost of a job with more GPUs, seconds.
        large_gpus: The most GPUs for which `restart_s` applies.
    """

    restart_s: float = 40.0
    restart_large_s: float = 60.0
    large_gpus: int = 8


@dataclass(frozen=True)
class RunRules:
    """Settings of a run that the trace does not contain.

    Attributes:
        costs: Restart costs of jobs for which the trace has none. None: in runs with models, the cost in the
            catalogue for the job's workload (`checkpoint_s`); in other runs, `PreemptionCosts()`.
        max_retries: How many times a job is requeued after a failure of its own; None: no limit.
        node_events: Failures, drains and returns of nodes, by time.
        always: Whether to log attempts even if nothing can interrupt a job.
    """

    costs: PreemptionCosts | None = None
    max_retries: int | None = None
    node_events: tuple[NodeEvent, ...] = ()
    always: bool = False


class ModelledAttempts(NamedTuple):
    """Energy and GPU time of S attempts, computed by the models; nan for an attempt that still runs."""

    energy_j: NDArray[np.float64]  # (S,) energy, joules
    share_s: NDArray[np.float64]  # (S,) integral over time of the attempt's share of each GPU
    used_s: NDArray[np.float64]  # (S,) integral over time of the attempt's share of the GPUs' busy time
    clock_s: NDArray[np.float64]  # (S,) integral over time of the GPUs' SM clock / maximum clock


@dataclass(frozen=True)
class AttemptTable:
    """Table of S attempts, in the order of their starts.

    Attributes:
        job: (S,) row of the attempt's job in the trace.
        attempt: (S,) index of the attempt among the attempts of its job; the first one has index 1.
        start_s: (S,) start time, seconds of the trace.
        end_s: (S,) end time, seconds of the trace; nan while the attempt runs.
        useful_s: (S,) work that no later attempt repeats, seconds; 0 while the attempt runs.
        reason: (S,) reason for the end, index in `attempt_arrays.REASONS`.
        gpu_at: (S + 1,) offsets: attempt k used the GPUs `gpu[gpu_at[k]:gpu_at[k + 1]]`.
        gpu: Indices of the GPUs in the cluster; empty if placements were not kept.
        done_s: (S,) work done, including lost work and restart costs, seconds at full speed; 0 while the
            attempt runs. None: all attempts ran at full speed, from start to end.
        books: Energy and GPU time of each attempt. None: the run had no models.
    """

    job: NDArray[np.intp]
    attempt: NDArray[np.int32]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    useful_s: NDArray[np.float64]
    reason: NDArray[np.int32]
    gpu_at: NDArray[np.int64]
    gpu: NDArray[np.int32]
    done_s: NDArray[np.float64] | None = None
    books: ModelledAttempts | None = None

    def __len__(self) -> int:
        return len(self.job)

    def gpus(self, k: int) -> tuple[int, ...]:
        """Return the GPUs of one attempt, in the order of allocation."""
        return tuple(self.gpu[self.gpu_at[k] : self.gpu_at[k + 1]].tolist())

    def reason_name(self, k: int) -> str:
        """Return the name of the reason why one attempt ended (`attempt_arrays.REASONS`)."""
        return kernels.REASONS[self.reason[k]]

    def select(self, which: NDArray[np.bool_]) -> AttemptTable:
        """Return the attempts that a mask (S,) selects."""
        counts = np.diff(self.gpu_at)
        return AttemptTable(
            self.job[which],
            self.attempt[which],
            self.start_s[which],
            self.end_s[which],
            self.useful_s[which],
            self.reason[which],
            np.append(0, np.cumsum(counts[which])),
            self.gpu[np.repeat(which, counts)],
            None if self.done_s is None else self.done_s[which],
            None if self.books is None else ModelledAttempts(*(one[which] for one in self.books)),
        )


def needs_log(trace: Trace, rules: RunRules) -> bool:
    """Return whether the run needs a log of attempts even if the scheduler does not preempt."""
    columns = ("fail_after_s", "depends_on", "array_limit")
    return rules.always or bool(rules.node_events) or any(_known(trace, name) for name in columns)


def new_log(
    trace: Trace,
    rows: NDArray[np.intp],
    rules: RunRules,
    *,
    keep_placements: bool,
    checkpoint_s: NDArray[np.float64] | None = None,
    fault_frac: float = 0.0,
) -> AttemptArrays:
    """Create the log of a run that has not started.

    Args:
        trace: All jobs.
        rows: (T,) runnable jobs, ascending.
        rules: Settings of the run.
        keep_placements: Whether to keep the GPUs of each attempt.
        checkpoint_s: (T,) restart cost of each job from the catalogue (`restart_costs_s`), seconds. None:
            the run has no models.
        fault_frac: Fraction of job failures that are GPU faults, which end all jobs on the GPUs of the job.
    """
    jobs = records(len(rows), kernels.JOB_LOG)
    gpus = trace.num_gpus[rows]
    jobs.duration_s, jobs.limit_s = trace.duration_s[rows], trace.time_limit_s[rows]
    jobs.checkpoint_s = _number(trace, "checkpoint_s")[rows]
    costs = rules.costs or PreemptionCosts()
    default_s = np.where(gpus > costs.large_gpus, costs.restart_large_s, costs.restart_s)
    if checkpoint_s is not None and rules.costs is None:
        default_s = checkpoint_s
    restart_s = _number(trace, "restart_s")[rows]
    jobs.restart_s = np.where(np.isnan(restart_s), default_s, restart_s)
    jobs.eligible_s = math.nan
    jobs.latest = jobs.array = -1
    fail_after_s = _add_failures(trace, rows, jobs)
    children = _add_dependencies(trace, rows, jobs)
    arrays, tasks = _add_arrays(trace, rows, jobs)
    config = records(1, kernels.LOG_CONFIG)
    config.fault_ppm = round(1e6 * fault_frac)
    config.max_retries = UNLIMITED if rules.max_retries is None else rules.max_retries
    room = int(np.ceil(gpus).sum()) + 1 if keep_placements else 0
    return AttemptArrays(
        jobs=jobs,
        attempts=records(len(rows) + 1, kernels.ATTEMPT),
        attempt_gpu=np.zeros(room, np.int32),
        fail_after_s=fail_after_s,
        children=children,
        arrays=arrays,
        tasks=tasks,
        node_events=_events(rules.node_events),
        ready=np.zeros(len(rows) + 1, np.int32),
        cancelled=np.zeros(len(rows), np.int32),
        config=config,
        counters=records(1, kernels.LOG_COUNTERS),
    )


def attempts_of(log: AttemptArrays, rows: NDArray[np.intp], *, modelled: bool = False) -> AttemptTable:
    """Return the attempts so far.

    Args:
        log: The log.
        rows: (T,) runnable jobs, as in `new_log`.
        modelled: Whether the run has models.
    """
    count, gpus = int(log.counters["attempts"][0]), int(log.counters["attempt_gpus"][0])
    used = log.attempts[:count]
    return AttemptTable(
        rows[used.row],
        used.attempt.copy(),
        used.start_s.copy(),
        used.end_s.copy(),
        used.useful_s.copy(),
        used.reason.copy(),
        np.append(used.gpu_at, gpus),
        log.attempt_gpu[:gpus].copy(),
        done_s=used.done_s.copy(),
        books=ModelledAttempts(
            *(np.where(np.isnan(used.end_s), math.nan, used[name]) for name in ModelledAttempts._fields)
        )
        if modelled
        else None,
    )


def _known(trace: Trace, name: str) -> bool:
    cells = trace.extra.get(name)
    if cells is None:
        return False
    return bool((cells != "").any()) if cells.dtype.kind == "U" else not bool(np.isnan(cells).all())


def _number(trace: Trace, name: str) -> NDArray[np.float64]:
    return np.asarray(trace.extra.get(name, np.full(len(trace), math.nan)), np.float64)


def _add_failures(trace: Trace, rows: NDArray[np.intp], jobs: Records) -> NDArray[np.float64]:
    found = failures(trace)
    times: list[float] = []
    for k, row in enumerate(rows.tolist() if found else ()):
        mine = found.get(row, ())
        jobs.first_failure[k], jobs.failures_given[k] = len(times), len(mine)
        times.extend(mine)
    return np.array(times, np.float64)


def _add_dependencies(trace: Trace, rows: NDArray[np.intp], jobs: Records) -> Records:
    """Return the dependencies between jobs of the run, grouped by the job on which other jobs depend.

    Writes to `jobs` where each group begins, its size, and for how many other jobs each job waits.
    Dependencies on jobs outside the run count as met.
    """
    found = dependencies(trace)
    if not found:
        return records(0, kernels.CHILD)
    number = {row: k for k, row in enumerate(rows.tolist())}
    children: list[list[tuple[int, int]]] = [[] for _ in range(len(rows))]
    for row, parents in found.items():
        for parent in parents:
            if row in number and parent.row in number:
                children[number[parent.row]].append((number[row], parent.kind))
                jobs.waits_for[number[row]] += 1
    counts = np.array([len(mine) for mine in children])
    jobs.children, jobs.first_child = counts, np.cumsum(counts) - counts
    out = records(int(counts.sum()), kernels.CHILD)
    out[:] = [child for mine in children for child in mine]
    return out


def _add_arrays(trace: Trace, rows: NDArray[np.intp], jobs: Records) -> tuple[Records, NDArray[np.int32]]:
    limit = _number(trace, "array_limit")[rows]
    if np.isnan(limit).all():
        return records(0, kernels.ARRAY), np.zeros(0, np.int32)
    ids = trace.extra["array_id"][rows]
    limited = np.flatnonzero(np.isin(ids, np.unique(ids[~np.isnan(limit)])))
    _, number = np.unique(ids[limited], return_inverse=True)
    jobs.array[limited] = number
    tasks = limited[np.argsort(number, kind="stable")]
    arrays = records(int(number.max()) + 1, kernels.ARRAY)
    arrays.length = np.bincount(number)
    arrays.first = np.cumsum(arrays.length) - arrays.length
    arrays.limit = [int(np.nanmin(limit[limited[number == k]])) for k in range(len(arrays))]
    return arrays, tasks.astype(np.int32)


def _events(node_events: tuple[NodeEvent, ...]) -> Records:
    events = records(len(node_events), kernels.NODE_EVENT)
    for k, event in enumerate(sorted(node_events, key=lambda one: one.time_s)):
        events[k] = (event.time_s, event.node, event.status)
    return events


class Placements(Sequence[tuple[int, ...]]):
    """Sequence of the GPUs of J jobs, in two arrays.

    Attributes:
        at: (J + 1,) offsets: job k uses the GPUs `gpu[at[k]:at[k + 1]]`, in the order of allocation.
        gpu: Indices of the GPUs in the cluster, for all jobs, one job after the other.
    """

    def __init__(self, at: NDArray[np.int64], gpu: NDArray[np.int32]) -> None:
        self.at, self.gpu = at, gpu

    def __len__(self) -> int:
        return len(self.at) - 1

    @overload
    def __getitem__(self, which: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, which: slice) -> Placements: ...
    def __getitem__(self, which: int | slice) -> tuple[int, ...] | Placements:
        if isinstance(which, slice):
            return self.take(np.arange(len(self))[which])
        k = range(len(self))[which]
        return tuple(self.gpu[self.at[k] : self.at[k + 1]].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, jobs: NDArray[np.intp]) -> Placements:
        """Return the placements of these jobs, in this order."""
        if np.array_equal(jobs, np.arange(len(self))):
            return self
        counts = np.diff(self.at)
        at = np.append(0, np.cumsum(counts[jobs], dtype=np.int64))
        if (jobs[1:] > jobs[:-1]).all():
            kept = np.zeros(len(self), dtype=np.bool_)
            kept[jobs] = True
            return Placements(at, self.gpu[np.repeat(kept, counts)])
        shift = np.repeat(self.at[:-1][jobs] - at[:-1], counts[jobs])
        return Placements(at, self.gpu[np.arange(at[-1]) + shift])

    @classmethod
    def of_tuples(cls, gpus: Sequence[tuple[int, ...]]) -> Placements:
        """Create placements from a list of GPU tuples."""
        at = np.append(0, np.cumsum([len(one) for one in gpus], dtype=np.int64))
        return cls(at, np.fromiter(chain.from_iterable(gpus), np.int32))

    @classmethod
    def of_rows(
        cls,
        jobs: int,
        rows: NDArray[np.intp],
        kept: NDArray[np.bool_],
        at: NDArray[np.int64],
        gpu: NDArray[np.int32],
    ) -> Placements:
        """Create the placements of all `jobs` jobs of a trace from the placements of some of them.

        Args:
            jobs: Number of jobs of the trace.
            rows: (T,) jobs that can have a placement, ascending; the others have no GPUs.
            kept: (T,) whether each of these jobs has a placement.
            at: (T + 1,) offsets: job `rows[i]` uses the GPUs `gpu[at[i]:at[i + 1]]`.
            gpu: Indices of the GPUs.
        """
        counts = np.diff(at)
        all_counts = np.zeros(jobs, np.int64)
        all_counts[rows] = np.where(kept, counts, 0)
        used = gpu.copy() if kept.all() else gpu[np.repeat(kept, counts)]
        return cls(np.append(0, np.cumsum(all_counts)), used)
