"""Look-ahead from a state, compiled: tries each action on a copy of the state, then continues with a rule.

The copy has the live jobs of one partition and sampled arrivals; the caller draws run times. The simulator's
own kernels advance it, so sampled futures obey the same rules as replays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    RUNNING,
    SLOT_EMPTY,
    OrderArrays,
    Records,
    StateArrays,
    empty_state,
    records,
)
from rlsched.cluster.kernels import rebuild_index
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import array_kernel, kernel, specialise
from rlsched.compile.reference import by_reference
from rlsched.decide.move import Move, start_of
from rlsched.decide.options import PLAIN_START, StartOptions
from rlsched.decide.plans.holds import first_startable, next_hold_end_s, pass_over
from rlsched.decide.rules import greedy
from rlsched.decide.rules.backfill import next_by_easy
from rlsched.decide.rules.greedy import next_in_order
from rlsched.decide.rules.keep_free import next_by_reserve
from rlsched_envs.sim.constants import MOVED
from rlsched_envs.sim.events import next_instant
from rlsched_envs.sim.loop import decide
from rlsched_envs.sim.moves import note_start, start
from rlsched_envs.sim.sim_arrays import TRUTH, SimArrays, new_progress

WAIT: Final = -1
"""As an action: hold back fitting jobs for the blocked one. Other actions: a job's slot, or NOTHING."""
NOTHING: Final = -2
"""As an action: start no job first; the rule that follows decides at once."""
MAX_WAITING: Final = 256
"""Maximum number of copied waiting jobs: later jobs start late under all actions, and cost computing time."""
_ROOM: Final = 64
_ALIGNMENT: Final = 64


@by_reference
class Futures(NamedTuple):
    """Sampled futures; S samples, L live jobs of the partition, A arrivals."""

    duration_s: NDArray[np.float64]  # (S, L + A) run time of each job that has not started
    end_s: NDArray[np.float64]  # (S, L) end of each running job, nan for waiting jobs
    submit_s: NDArray[np.float64]  # (S, A) ascending, after now
    demand: NDArray[np.int32]  # (S, A) demand class
    predicted_s: NDArray[np.float64]  # (S, A)
    spread: NDArray[np.float64]  # (S, A)


GREEDY: Final = 0
BACKFILL: Final = 1
KEEP_FREE: Final = 2


class FollowedRule(NamedTuple):
    """A rule that continues after an action, in the queue order of the copied state.

    Attributes:
        kind: GREEDY, BACKFILL or KEEP_FREE.
        blocks, reserve_after_s, long_job_s, leave_frac: As in `decide.options.RuleOptions`.
    """

    kind: int = GREEDY
    blocks: bool = False
    reserve_after_s: float = math.inf
    long_job_s: float = math.inf
    leave_frac: float = 0.0


FOLLOWER: Final = np.dtype(
    [
        ("kind", np.int32),
        ("blocks", np.bool_),
        ("reserve_after_s", np.float64),
        ("long_job_s", np.float64),
        ("leave_frac", np.float64),
    ]
)
"""A `FollowedRule` for kernels."""


def followers(rules: Sequence[FollowedRule]) -> Records:
    """(K,) rules that follow K actions."""
    made = records(len(rules), FOLLOWER)
    for k, rule in enumerate(rules):
        made[k] = tuple(rule)
    return made


def first_by(rule: FollowedRule, state: ClusterState, partition: int, now_s: float) -> int:
    """Return the slot of the job that a rule starts next in a live state, -1 for none; ignores holds."""
    return int(_next_start(state.arrays, partition, followers([rule])[0], False, now_s))


class PackedRun(NamedTuple):
    """A run with all its arrays in one buffer, so that copying the run copies one array."""

    memory: NDArray[np.uint8]
    sim: SimArrays


def pack(run: SimArrays) -> PackedRun:
    """Return a copy of the run in one buffer."""
    size = 0
    offsets: list[int] = []

    def measure(part: Any) -> None:
        nonlocal size
        if isinstance(part, tuple):
            for one in part:
                measure(one)
        elif part is not None:
            offsets.append(size)
            size += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT

    measure(run)
    memory = np.zeros(size, np.uint8)
    places = iter(offsets)

    def move(part: Any) -> Any:
        if isinstance(part, tuple):
            return type(part)(*(move(one) for one in part))
        if part is None:
            return None
        at = next(places)
        moved = memory[at : at + part.nbytes].view(part.dtype).reshape(part.shape).view(type(part))
        moved[...] = part
        moved.flags.writeable = part.flags.writeable  # part of its type in kernels
        return moved

    return PackedRun(memory, move(run))


class LookAhead:
    """Copies of one partition for evaluating actions; an instance belongs to one thread.

    Args:
        most_waiting: Maximum number of copied waiting jobs.

    Attributes:
        slots: (L,) slots of the partition's live jobs in the state copied last: first running jobs, then
            waiting jobs in queue order. The index of a job in this array is its row and its slot in the copy.
    """

    def __init__(self, most_waiting: int = MAX_WAITING) -> None:
        self._most_waiting = most_waiting
        self._base: PackedRun | None = None
        self._work: PackedRun | None = None
        self._shape: tuple[int, ...] = ()
        self.slots = np.empty(0, np.int32)

    def take(
        self,
        state: ClusterState,
        partition: int,
        arrivals: int,
        now_s: float,
        also: NDArray[np.int32] | None = None,
    ) -> None:
        """Copy the running and waiting jobs of a partition, with room for `arrivals` future jobs.

        Copies the first `most_waiting` jobs of the queue, followed by the jobs in the slots `also`.
        """
        s = state.arrays
        ran = s.derived.slot.running[: s.derived.running_len[0]]
        ran = np.sort(ran[s.job.placed_in[ran] == partition])
        queue = state.queue(partition)
        behind = queue[self._most_waiting :]
        kept = behind[np.isin(behind, also)] if also is not None else behind[:0]
        self.slots = np.concatenate([ran, queue[: self._most_waiting], kept]).astype(np.int32)
        live = len(self.slots)
        base = self._sized(s, live + arrivals).sim
        fill(base.state, s, self.slots, partition)
        rebuild_index(base.state)
        truth, progress = base.truth, base.progress
        truth.submit_s[:] = np.inf
        truth.fixed_end_s[:] = np.nan
        truth.limit_s[:] = np.nan
        truth.own_partition[:], truth.shared_partition[:], truth.vc[:] = partition, -1, -1
        progress.ends.row[:] = np.arange(len(progress.ends))
        progress.run[:] = 0
        run = progress.run[0]
        run.now_s, run.timer_s, run.next_row = now_s, np.inf, live

    def _sized(self, like: StateArrays, rows: int) -> PackedRun:
        """Return the buffers, allocated again if the cluster or the number of jobs requires it."""
        partitions, sizes = like.derived.holes.shape
        shape = (len(like.node), len(like.gpu), partitions, sizes, len(like.demand))
        have = len(self._base.sim.truth) if self._base is not None else 0
        if self._base is None or shape != self._shape or not rows <= have <= 2 * rows + _ROOM:
            slots = -(-rows // _ROOM) * _ROOM
            self._shape = shape
            order = OrderArrays(like.order.code[:1].copy(), like.order.cost)
            state = empty_state(
                shape[0], shape[1], slots, partitions, sizes - 1, order=order, demands=shape[4]
            )
            truth = np.zeros(slots, TRUTH).view(np.recarray)
            progress = new_progress(slots, truth, len(like.gpu), keep_placements=False)
            run = SimArrays(state, truth, progress)
            self._base, self._work = pack(run), pack(run)
        return self._base

    def costs(
        self,
        partition: int,
        actions: NDArray[np.int32],
        held: NDArray[np.int32],
        blocked: int,
        futures: Futures,
        follow: Records,
    ) -> NDArray[np.float64]:
        """Return the queueing of each sample under each action until all jobs have started, job-seconds.

        Args:
            partition: The copied partition.
            actions: (K,) WAIT, NOTHING, or the slot in the copy of a waiting job that fits.
            held: Slots in the copy of the jobs that a *wait* holds back.
            blocked: Slot in the copy of the blocked job that a *wait* makes room for, -1 for none.
            futures: Sampled futures.
            follow: (K,) FOLLOWER, the rule that continues after each action.

        Returns:
            (S, K).
        """
        assert self._base is not None
        assert self._work is not None
        costs = np.zeros((len(futures.duration_s), len(actions)))
        _try_actions(
            self._base.memory,
            self._work.memory,
            self._work.sim,
            partition,
            actions,
            held,
            blocked,
            futures,
            follow,
            costs,
        )
        return costs


def fill(to: StateArrays, s: StateArrays, slots: NDArray[np.int32], partition: int = -1) -> None:
    """Copy nodes, GPUs, classes and these jobs, renumbered by position; the index must be rebuilt.

    The copied jobs then belong only to this partition; with -1, to their own partitions.
    """
    number = np.zeros(len(s.job) + 1, np.int32)
    number[-1] = -1
    number[slots] = np.arange(len(slots))
    to.node[:], to.gpu[:], to.demand[:] = s.node, s.gpu, s.demand
    to.gpu.tenant[:] = number[s.gpu.tenant]
    to.job.status[:] = SLOT_EMPTY
    live = to.job[: len(slots)]
    live[:] = s.job[slots]
    if partition >= 0:
        live.own_partition[:], live.shared_partition[:] = partition, -1
    to.config[:], to.counters[:] = s.config, s.counters
    to.counters[0].live_jobs, to.config[0].sorts_queue = len(slots), 1
    to.order.code[:] = s.order.code[: len(to.order.code)]
    to.config.modelled = to.order.code.revises = 0  # sampled jobs run as drawn, and teach nothing
    with_blocked = live.held_for_slot >= 0
    live.held_for_slot[with_blocked] = number[live.held_for_slot[with_blocked]]


@array_kernel
def try_actions(
    base: NDArray[np.uint8],
    work: NDArray[np.uint8],
    run: SimArrays,
    p: int,
    actions: NDArray[np.int32],
    held: NDArray[np.int32],
    blocked: int,
    futures: Futures,
    follow: Records,
    costs: NDArray[np.float64],
) -> None:
    """Fill `costs` (S, K). `run` uses the buffer `work`, and starts as a copy of `base` for each entry."""
    for sample in range(costs.shape[0]):
        for k in range(costs.shape[1]):
            work[:] = base
            imagine(run, futures, sample)
            if actions[k] == WAIT:
                for position in range(held.shape[0]):
                    pass_over(run.state, held[position], blocked, run.progress.run[0].now_s)
            rule = follow[k]
            costs[sample, k] = queueing_ahead(run, p, actions[k], rule, futures.duration_s.shape[1])


@kernel
def imagine(run: SimArrays, futures: Futures, sample: int) -> None:
    """Set one sample's run times, ends and arrivals in the copy."""
    truth = run.truth
    live, rows = futures.end_s.shape[1], futures.duration_s.shape[1]
    for row in range(rows):
        truth.duration_s[row] = futures.duration_s[sample, row]
    for row in range(live, rows):
        truth.submit_s[row] = futures.submit_s[sample, row - live]
        truth.demand[row] = futures.demand[sample, row - live]
        truth.predicted_s[row] = futures.predicted_s[sample, row - live]
        truth.spread[row] = futures.spread[sample, row - live]
    for row in range(live):
        truth.fixed_end_s[row] = futures.end_s[sample, row]
    let_run(run, live)


@kernel
def let_run(run: SimArrays, live: int) -> None:
    """Set up the first rows, as running or waiting; running jobs end at `fixed_end_s`, unless preempted."""
    truth, job = run.truth, run.state.job
    for row in range(live):
        if job.status[row] == RUNNING:
            note_start(run, row)
            work_s = truth.fixed_end_s[row] - job.start_s[row] - job.overhead_left_s[row]
            truth.duration_s[row] = job.saved_s[row] + work_s
        truth.fixed_end_s[row] = np.nan


@kernel
def next_start(s: StateArrays, p: int, rule: Any, holding: bool, now_s: float) -> int:
    """Return the slot of the next job that a rule starts, -1 for none.

    EASY and a plain rule without blocking respect holds; the other rules ignore them.
    """
    keeps_holds = holding and (rule.kind == BACKFILL or (rule.kind == GREEDY and not rule.blocks))
    if rule.kind == GREEDY and not keeps_holds:
        return next_in_order(s, p, rule.blocks)
    if rule.kind == BACKFILL:
        position = next_by_easy(s, p, PLAIN_START, now_s, rule.reserve_after_s, keeps_holds)
    elif rule.kind == KEEP_FREE:
        position = next_by_reserve(s, p, rule.long_job_s, rule.leave_frac)
    else:
        position = first_startable(s, p, now_s)
    return s.derived.queue[p, position] if position >= 0 else -1


class Following(NamedTuple):
    """Arguments that `loop.decide` passes to the rule that follows."""

    start: StartOptions
    rule: Any  # FOLLOWER
    holding: bool  # whether there may be holds


@kernel
def _next_move(s: StateArrays, p: int, o: Following, now_s: float) -> Move:
    return start_of(next_start(s, p, o.rule, o.holding, now_s), -1)


@kernel
def queueing_ahead(run: SimArrays, p: int, slot: int, rule: Any, rows: int) -> float:
    """Start `slot` (WAIT, NOTHING: none), then run a rule in partition `p` until all rows have started.

    Returns the queueing since the start of the copy, job-seconds.
    """
    now, holding = run.progress.run[0], True
    if slot >= 0:
        start(run, p, start_of(slot, -1), PLAIN_START)
    while True:
        decide(run, Following(PLAIN_START, rule, holding))
        if holding:
            now.timer_s = next_hold_end_s(run.state, now.now_s)
            holding = now.timer_s < np.inf
        if now.starts == rows or next_instant(run) != MOVED:
            return now.queued_s


_next_start = specialise(next_start, MODELLED=False)
_try_actions = specialise(
    try_actions,
    LOGGED=False,
    MODELLED=False,
    DIALLED=False,
    LOOKS=False,
    SKIPS_QUIET=False,
    begin=greedy.begin,
    next_move=_next_move,
    after=greedy.after,
    next_look_s=greedy.next_look_s,
)
