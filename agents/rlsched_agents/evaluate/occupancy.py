"""Computes allocation and fragmentation of GPUs over time in a replayed schedule."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import holds
from rlsched.workload.distinct import distinct_rows
from rlsched.workload.load import partition_sizes
from rlsched.workload.trace import slack_s
from rlsched_agents.evaluate.modelled import used_gpus
from rlsched_envs.sim.attempt_log import Placements

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched_envs.sim.attempt_log import AttemptTable, ModelledAttempts
    from rlsched_envs.sim.job_table import JobTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Small = NDArray[np.int32]
Mask = NDArray[np.bool_]

STEPS_S: Final = (60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 604800.0)
MAX_STEPS: Final = 200


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Means in equal steps of time, from the first to the last submission of the measured jobs.

    A step is 1, 5 or 15 minutes, 1 or 6 hours, a day or a week long: the shortest length that gives at most
    200 steps, or a week.

    Attributes:
        from_s: Start of the first step, seconds of the trace.
        to_s: End of the last step, which can be shorter than the other steps.
        step_s: Length of a step, seconds.
        gpus_allocated: Mean number of allocated GPUs in each step.
        gpus_used: Mean number of busy GPUs in each step, from the mean of each attempt. None without models.
        fragmentation_frac: Unusable / free GPU-seconds (`fragmentation`) of each step; None for a step
            without free GPUs. The list is None if placements were not kept, or if jobs requested parts of a
            GPU.
        power_kw: Mean power of the jobs in each step, from the mean of each attempt, without idle power. None
            without models.
        price: Mean price of electricity in each step, currency per MWh; None if it is unknown.
        carbon_g_kwh: Mean carbon intensity in each step, g CO2e per kWh; None if it is unknown.
        gpus_waiting: Mean number of GPUs that waiting jobs request in each step. Paused and requeued jobs
            wait, too.
        gpus_waiting_slack: The same for jobs with slack, which a policy may hold back. None if no job has
            slack.
    """

    from_s: float
    to_s: float
    step_s: float
    gpus_allocated: list[float]
    gpus_used: list[float] | None
    fragmentation_frac: list[float | None] | None
    power_kw: list[float] | None = None
    price: list[float] | None = None
    carbon_g_kwh: list[float] | None = None
    gpus_waiting: list[float] | None = None
    gpus_waiting_slack: list[float] | None = None


class Fragmentation(NamedTuple):
    """Free and unusable GPU-seconds in each of B time steps, on nodes that at least one measured job can use.

    A free GPU is unusable for a job if the job does not fit on the node of the GPU.
    """

    free_gpu_s: Floats  # (B,)
    unusable_gpu_s: Floats  # (B,) expected value for a job drawn at random from the measured jobs
    by_gpus_frac: dict[float, float | None]  # by size of job: unusable / free GPU-seconds

    @property
    def total_frac(self) -> float | None:
        """Unusable / free GPU-seconds over all time steps together; None if no GPU was ever free."""
        free = float(self.free_gpu_s.sum())
        return float(self.unusable_gpu_s.sum()) / free if free > 0 else None

    @property
    def by_step_frac(self) -> list[float | None]:
        """Unusable / free GPU-seconds of each time step; None for a time step in which no GPU was free."""
        pairs = zip(self.unusable_gpu_s.tolist(), self.free_gpu_s.tolist(), strict=True)
        return [unusable / free if free > 0 else None for unusable, free in pairs]


def step_edges(table: JobTable, measured: Mask) -> Floats | None:
    """Return the (B + 1,) edges of B time steps, seconds of the trace.

    None if all measured jobs arrive at the same time.
    """
    times = table.trace.submit_s[measured]
    if not len(times) or times[-1] <= times[0]:
        return None
    first, last = float(times[0]), float(times[-1])
    step_s = step_length_s(last - first)
    steps = math.ceil((last - first) / step_s)
    return np.append(first + step_s * np.arange(steps), last)


def step_length_s(span_s: float) -> float:
    """Return the length of the time steps into which a span of `span_s` seconds is divided, seconds."""
    return next((step_s for step_s in STEPS_S if span_s <= step_s * MAX_STEPS), STEPS_S[-1])


def over_time(table: JobTable, edges: Floats, fragments: Fragmentation | None) -> OverTime:
    """Return the allocation, use and fragmentation of GPUs in each time step of a replay.

    Args:
        table: The replayed jobs.
        edges: (B + 1,) edges of the time steps, from `step_edges`.
        fragments: Result of `fragmentation` for the same edges; None: not computed.
    """
    attempts, has_slack = table.attempts, slack_s(table.trace) > 0.0
    taken = _within(gpu_holds(table), edges)
    allocated = _mean_over(taken, table.trace.num_gpus[attempts.job[taken.attempt]], edges)
    used = power_kw = None
    if attempts.books is not None:
        ran = _within(every_attempt(attempts), edges)
        used = _mean_over(ran, used_gpus(table, attempts, attempts.books)[ran.attempt], edges)
        power_kw = _mean_over(ran, _power_kw(attempts, attempts.books)[ran.attempt], edges)
    cost, carbon = (None, None) if table.energy is None else (table.energy.cost, table.energy.carbon)
    return OverTime(
        from_s=float(edges[0]),
        to_s=float(edges[-1]),
        step_s=step_length_s(edges[-1] - edges[0]),
        gpus_allocated=allocated.tolist(),
        gpus_used=None if used is None else used.tolist(),
        fragmentation_frac=None if fragments is None else fragments.by_step_frac,
        power_kw=None if power_kw is None else power_kw.tolist(),
        price=None if cost is None else cost.signal_means(edges),
        carbon_g_kwh=None if carbon is None else carbon.signal_means(edges),
        gpus_waiting=gpus_waiting(table, ~table.rejected, edges).tolist(),
        gpus_waiting_slack=gpus_waiting(table, ~table.rejected & has_slack, edges).tolist()
        if has_slack.any()
        else None,
    )


def gpus_waiting(table: JobTable, jobs: Mask, edges: Floats) -> Floats:
    """Return the (B,) mean number of GPUs that waiting jobs request in each of B time steps.

    A job waits from its submission to its end while it has no attempt. `jobs`: (J,) which jobs count.
    """
    of, attempts = np.flatnonzero(jobs), table.attempts
    unended = _within(Holds(of, table.trace.submit_s[of], table.end_s[of]), edges)
    running = _within(every_attempt(attempts), edges)
    running = running.select(jobs[attempts.job[running.attempt]])
    gpus = table.trace.num_gpus
    requested = _mean_over(unended, gpus[unended.attempt], edges)
    given = _mean_over(running, gpus[attempts.job[running.attempt]], edges)
    return np.maximum(requested - given, 0.0)  # rounding errors


def _power_kw(attempts: AttemptTable, books: ModelledAttempts) -> Floats:
    """Return the (S,) mean power of each attempt, kW; 0 for an attempt that still runs or took no time."""
    ran_s = attempts.end_s - attempts.start_s
    is_known = ran_s > 0
    return np.where(is_known, books.energy_j, 0.0) / np.where(is_known, ran_s, 1.0) / 1000.0


def fragmentation(table: JobTable, edges: Floats, measured: Mask) -> Fragmentation | None:
    """Compute the free and the unusable GPU-seconds of each time step.

    The measure is from Weng et al., «Beware of Fragmentation» (FGD), USENIX ATC 2023, for whole GPUs. If a
    job does not fit on a node, the free GPUs of the node are unusable (fragments) for this job. The result is
    the expected value for a job drawn at random from the measured jobs that can run.

    This function differs from the paper in three points. The job is drawn from the jobs that can run in the
    node's partition. A job with more GPUs than the largest node of the partition needs whole nodes (the
    remainder is ignored). Nodes that no measured job can use are left out.

    A shared GPU is not free. Jobs without GPUs and resources other than GPUs are ignored.

    Args:
        table: The replayed jobs with their placements.
        edges: (B + 1,) edges of the time steps, seconds of the trace.
        measured: (J,) whether each job is in the window.

    Returns:
        None if placements were not kept, or if jobs requested parts of a GPU.
    """
    changes = _changes(table, edges)
    if changes is None:
        return None
    nodes = table.spec.expand()
    sizes = np.array([node.gpus for node in nodes], dtype=np.int64)
    kinds = list(dict.fromkeys((node.vc, node.gpus) for node in nodes))
    kind = np.array([kinds.index((node.vc, node.gpus)) for node in nodes], dtype=np.int64)
    demand = _demand(table, measured & ~table.rejected & (table.trace.num_gpus > 0))
    useless, counted = _as_array(_useless(table.spec, demand), kinds)
    free_gpu_s, unusable_gpu_s = _free_and_unusable(changes, sizes, kind, useless, counted, edges)
    held_s = _time_by_free(changes, sizes, kind, useless.shape, edges)
    by_gpus: dict[float, float | None] = {}
    for gpus in sorted({gpus for _, gpus in demand}):
        of_size, there = _as_array(
            _useless(table.spec, {of: count for of, count in demand.items() if of[1] == gpus}), kinds
        )
        total = float((held_s[there] * np.arange(held_s.shape[1])).sum())
        by_gpus[gpus] = float((held_s * of_size).sum()) / total if total > 0 else None
    return Fragmentation(free_gpu_s, np.minimum(unusable_gpu_s, free_gpu_s), by_gpus)  # rounding errors


class _Changes(NamedTuple):
    """E changes: at `time_s[i]`, `change[i]` more GPUs are free on node `node[i]`."""

    time_s: Floats  # (E,)
    node: Small  # (E,)
    change: Ints | Small  # (E,) negative: GPUs are allocated

    def select(self, which: Ints | Mask) -> _Changes:
        """Return the selected changes."""
        return _Changes(self.time_s[which], self.node[which], self.change[which])


def _changes(table: JobTable, edges: Floats) -> _Changes | None:
    """Return each change of the number of free GPUs of a node, sorted by node, then by time.

    Changes outside the time from the first to the last edge are left out. Changes of a node at the same time
    are added up. None if a placement was not kept, or if jobs requested parts of a GPU.
    """
    changes = _unordered_changes(table, edges)
    if changes is None:
        return None
    time_s, node, change = changes.select(np.lexsort((changes.time_s, changes.node)))
    new = np.ones(len(node), dtype=np.bool_)
    new[1:] = (time_s[1:] != time_s[:-1]) | (node[1:] != node[:-1])
    first = np.flatnonzero(new)
    summed = np.add.reduceat(change, first, dtype=np.int64) if len(first) else np.zeros(0, dtype=np.int64)
    return _Changes(time_s[first], node[first], summed)


def _unordered_changes(table: JobTable, edges: Floats) -> _Changes | None:
    """Return the changes of `_changes`, but unsorted, and not added up if several are at the same time."""
    attempts, held = table.attempts, _within(gpu_holds(table), edges)
    gpus = table.trace.num_gpus[attempts.job[held.attempt]]
    if np.any((gpus > 0) & (gpus < 1)):
        return None
    if not gpus.all():
        held = held.select(gpus > 0)
    placed = Placements(attempts.gpu_at, attempts.gpu).take(held.attempt)
    if np.any(np.diff(placed.at) == 0):
        return None
    owner, node, taken = _by_node(placed, table.gpu_node)
    return _Changes(
        np.concatenate((held.start_s[owner], held.end_s[owner])),
        np.concatenate((node, node)),
        np.concatenate((-taken, taken)),
    )


def _by_node(placed: Placements, gpu_node: Small) -> tuple[Ints, Small, Small]:
    """Group adjacent GPUs of each placement by node. Return three arrays with an entry per group.

    They are: index of the placement, index of the node, and number of GPUs.
    """
    node = gpu_node[placed.gpu]
    new = np.ones(len(node), dtype=np.bool_)
    new[1:] = node[1:] != node[:-1]
    new[placed.at[:-1]] = True
    first = np.flatnonzero(new)
    owner = np.searchsorted(placed.at, first, side="right") - 1
    return owner, node[first], np.diff(first, append=len(node)).astype(np.int32)


def _free_and_unusable(
    changes: _Changes, sizes: Ints, kind: Ints, useless: Floats, counted: Mask, edges: Floats
) -> tuple[Floats, Floats]:
    """Return two (B,) arrays: the free and the unusable GPU-seconds in each of B time steps.

    Args:
        changes: Result of `_changes`.
        sizes: (N,) number of GPUs of each node.
        kind: (N,) kind of each node, a row of `useless`.
        useless: (kinds, GPUs of the largest node + 1) expected number of unusable GPUs, by kind of node and
            number of free GPUs (`_useless`).
        counted: (kinds,) whether nodes of each kind are included.
        edges: (B + 1,) edges of the time steps, seconds of the trace.
    """
    kept = counted[kind]
    if not kept.all():
        changes = changes.select(kept[changes.node])
    node, change = changes.node, changes.change
    free = sizes[node] + _running_sum(node, change)
    step_up = useless[kind[node], free] - useless[kind[node], free - change]
    del free
    order = np.argsort(changes.time_s, kind="stable")
    time_s = changes.time_s[order]
    return (
        _integral(time_s, change[order].astype(np.float64), float(sizes[kept].sum()), edges),
        _integral(time_s, step_up[order], float(useless[kind[kept], sizes[kept]].sum()), edges),
    )


def _time_by_free(
    changes: _Changes, sizes: Ints, kind: Ints, shape: tuple[int, int], edges: Floats
) -> Floats:
    """Return how long nodes of each kind had each number of free GPUs, summed over the nodes, node-seconds.

    `shape`: shape of the result, (kinds of nodes, GPUs of the largest node + 1).
    """
    everyone = np.arange(len(sizes))
    at = np.searchsorted(changes.node, everyone)  # each node also has an entry at the first edge
    node = np.insert(changes.node, at, everyone)
    since_s = np.insert(changes.time_s, at, edges[0])
    free = np.insert(sizes[changes.node] + _running_sum(changes.node, changes.change), at, sizes)
    is_last = np.append(node[1:] != node[:-1], True)
    until_s = np.where(is_last, edges[-1], np.append(since_s[1:], edges[-1]))
    cells = np.bincount(kind[node] * shape[1] + free, until_s - since_s, minlength=shape[0] * shape[1])
    return np.asarray(cells, dtype=np.float64).reshape(shape)


Kind = tuple[str | None, int]
"""Kind of node: its VC (None: all VCs) and its number of GPUs."""


def _demand(table: JobTable, jobs: Mask) -> dict[tuple[str, float], int]:
    """Count the selected jobs by VC and number of GPUs."""
    vc, gpus = table.trace.vc[jobs], table.trace.num_gpus[jobs]
    first, which = distinct_rows([vc, gpus])
    of_each = zip(vc[first].tolist(), gpus[first].tolist(), strict=True)
    return dict(zip(of_each, np.bincount(which).tolist(), strict=True))


def _useless(spec: ClusterSpec, demand: dict[tuple[str, float], int]) -> dict[Kind, Floats]:
    """Return a dict: kind of node -> array of the expected numbers of unusable GPUs.

    Entry k of an array is for a node with k free GPUs, and a job drawn at random from `demand`. Kinds of
    nodes that no job can use are missing.
    """
    found: dict[Kind, Floats] = {}
    for owner, nodes in partition_sizes(spec).items():
        sizes: Counter[int] = Counter()
        for (vc, gpus), count in demand.items():
            if owner in (None, vc) and holds(nodes, int(gpus)):
                sizes[int(gpus)] += count
        largest = max(nodes)
        for size in nodes if sizes else ():
            free = np.arange(size + 1)
            too_few = sum(
                count * (free < (gpus if gpus <= largest else size)) for gpus, count in sizes.items()
            )
            found[owner, size] = np.asarray(free * too_few / sizes.total(), dtype=np.float64)
    return found


def _as_array(useless: dict[Kind, Floats], kinds: list[Kind]) -> tuple[Floats, Mask]:
    """Return the numbers of unusable GPUs (`_useless`) as an array, with a row for each entry of `kinds`.

    Also return a (kinds,) mask: whether `useless` contains the kind; if not, its row is 0. The shape of the
    array is (kinds, GPUs of the largest node + 1).
    """
    table = np.zeros((len(kinds), max(gpus for _, gpus in kinds) + 1))
    for number, kind in enumerate(kinds):
        values = useless.get(kind, np.zeros(0))
        table[number, : len(values)] = values
    return table, np.array([kind in useless for kind in kinds], dtype=np.bool_)


class Holds(NamedTuple):
    """H intervals in which GPUs were allocated. Intervals of the same GPUs do not overlap."""

    attempt: Ints  # (H,) index in `JobTable.attempts` of an attempt on these GPUs
    start_s: Floats  # (H,)
    end_s: Floats  # (H,) nan while the GPUs are still allocated

    def select(self, which: Mask) -> Holds:
        """Return the selected intervals."""
        return Holds(self.attempt[which], self.start_s[which], self.end_s[which])


def gpu_holds(table: JobTable) -> Holds:
    """Return the intervals in which GPUs were allocated to one job, or to several jobs that shared them.

    Jobs that share whole GPUs use exactly the same GPUs (`cluster.kernels.join`). Jobs that have the same
    first GPU at the same time therefore form one interval. A job with a part of a GPU has its own interval.
    """
    attempts = table.attempts
    if attempts.books is None:
        return every_attempt(attempts)
    whole = (table.trace.num_gpus[attempts.job] >= 1) & (np.diff(attempts.gpu_at) > 0)
    of = np.flatnonzero(whole)
    first_gpu = attempts.gpu[attempts.gpu_at[of]]
    order = np.lexsort((attempts.start_s[of], first_gpu))
    of, first_gpu = of[order], first_gpu[order]
    ends_s = np.where(np.isnan(attempts.end_s[of]), np.inf, attempts.end_s[of])
    begins: list[int] = []
    until_s: list[float] = []
    gpu_before = -1
    rows = zip(first_gpu.tolist(), attempts.start_s[of].tolist(), ends_s.tolist(), strict=True)
    for position, (gpu, start_s, end_s) in enumerate(rows):
        if gpu != gpu_before or start_s >= until_s[-1]:
            begins.append(position)
            until_s.append(end_s)
        else:
            until_s[-1] = max(until_s[-1], end_s)
        gpu_before = gpu
    alone = np.flatnonzero(~whole)
    owner = np.concatenate((alone, of[begins]))
    last_s = np.concatenate((attempts.end_s[alone], until_s))
    return Holds(owner, attempts.start_s[owner], np.where(np.isinf(last_s), np.nan, last_s))


def every_attempt(attempts: AttemptTable) -> Holds:
    """Return one interval per attempt, from its start to its end."""
    return Holds(np.arange(len(attempts)), attempts.start_s, attempts.end_s)


def _within(times: Holds, edges: Floats) -> Holds:
    """Return the intervals, clipped to the time from `edges[0]` to `edges[-1]`; drop intervals outside it."""
    over = ~np.isnan(times.end_s) & (times.end_s <= edges[0])
    kept = (times.start_s < edges[-1]) & ~over
    end_s = np.where(np.isnan(times.end_s[kept]), edges[-1], times.end_s[kept])
    return Holds(times.attempt[kept], np.maximum(times.start_s[kept], edges[0]), np.minimum(end_s, edges[-1]))


def _mean_over(times: Holds, gpus: Floats, edges: Floats) -> Floats:
    """Return the (B,) mean of a total over each of B time steps, such as the number of allocated GPUs.

    The total at an instant is the sum of `gpus` over the intervals that contain the instant.

    `gpus`: (H,) value of each interval, such as its number of GPUs or its power.
    """
    at_s, change = np.concatenate((times.start_s, times.end_s)), np.concatenate((gpus, -gpus))
    order = np.argsort(at_s, kind="stable")
    return _integral(at_s[order], change[order], 0.0, edges) / np.diff(edges)


def _running_sum(node: Small, change: Ints | Small) -> Ints:
    """Return for each change of free GPUs the sum of this and all earlier changes of the same node.

    `change` must be sorted by node, then by time.
    """
    total, before = np.cumsum(change), np.zeros(len(change), dtype=np.int64)
    first = np.flatnonzero(node[1:] != node[:-1]) + 1
    before[first] = np.diff(total[first - 1], prepend=0)
    return np.asarray(total - np.cumsum(before), dtype=np.int64)


def _integral(time_s: Floats, change: Floats, at_first: float, edges: Floats) -> Floats:
    """Return the (B,) integrals of a piecewise constant function of time over each of B time steps.

    Args:
        time_s: (E,) times of the jumps, from the first to the last edge, ascending.
        change: (E,) heights of the jumps.
        at_first: Value of the function at the first edge, before any jump.
        edges: (B + 1,) edges of the time steps, ascending.
    """
    at_s = np.append(edges[0], time_s)
    value = np.cumsum(np.append(at_first, change))
    area = np.append(0.0, np.cumsum(value[:-1] * np.diff(at_s)))
    last = np.searchsorted(at_s, edges, side="right") - 1
    up_to = area[last] + value[last] * (edges - at_s[last])
    return np.asarray(np.clip(np.diff(up_to), 0.0, None), dtype=np.float64)
