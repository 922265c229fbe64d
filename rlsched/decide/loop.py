"""The decision loop of one instant, which simulator and broker run after every batch of events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rlsched.cluster.arrays import CLOCKS_ALONE, columns
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.options import NO_PRICE
from rlsched.decide.price import defer_jobs
from rlsched.decide.record import JobName, with_names
from rlsched.decide.scheduler import Decision, Scheduler


def decide_all(
    state: ClusterState,
    scheduler: Scheduler,
    now_s: float,
    *,
    record: bool = False,
    job_name: JobName | None = None,
) -> Iterator[tuple[int, Decision]]:
    """Call the scheduler for each partition until it returns *wait*, and apply its decisions to the state.

    The scheduler is called only if a waiting job fits, a running job must pause, or a job waits and the
    scheduler preempts or shares GPUs. After a preemption, the loop repeats for all partitions, because a job
    can wait for two partitions.

    Yields (partition, decision) after each decision has been applied. If `job_name` is given, records contain
    the names of their jobs and nodes.
    """
    can = scheduler.abilities
    shares = (
        can.shares and state.needs.models and int(columns(state.arrays.config)["modelled"][0]) != CLOCKS_ALONE
    )
    waits = state.arrays.order.may_change and not columns(state.arrays.config)["preempts"][0]
    always = (can.preempts and not waits) or shares
    again = True
    if state.rank_due_s <= now_s:
        state.ordering.rank_by_slack(state.arrays, now_s)
    scheduler.begin_instant(state, now_s)
    _keep_limit(state, scheduler, now_s)
    while again:
        again = False
        for partition in range(state.num_partitions):
            while (
                scheduler.pauses(state, partition, now_s)  # first: it returns deferred jobs to the queue
                or has_fitting(state, partition)
                or (always and len(state.queue(partition)))
            ):
                decision = scheduler.decide(state, partition, now_s, record=record)
                if decision.record is not None and job_name is not None:
                    named = with_names(decision.record, job_name, state.node_names)
                    decision = msgspec.structs.replace(decision, record=named)
                apply(state, decision, now_s)
                _keep_limit(state, scheduler, now_s)
                yield partition, decision
                if isinstance(decision.action, Wait):
                    break
                again = again or isinstance(decision.action, Preempt)


def _keep_limit(state: ClusterState, scheduler: Scheduler, now_s: float) -> None:
    """Keep the power limit by deferring jobs and capping clocks, unless the scheduler does it itself."""
    if state.is_limited and not scheduler.keeps_limit():
        for_state(defer_jobs, state)(state.arrays, NO_PRICE, False, now_s)


def has_fitting(state: ClusterState, partition: int) -> bool:
    """Return whether a waiting job fits this partition now."""
    return bool(first_fitting(state.arrays, partition, 0) >= 0)


def fitting_jobs(state: ClusterState, partition: int) -> list[int]:
    """Return the sequence numbers of the waiting jobs that fit this partition now, in queue order."""
    queue, found = state.queue(partition), list[int]()
    position = int(first_fitting(state.arrays, partition, 0))
    while position >= 0:
        found.append(int(state.arrays.job.seq[queue[position]]))
        position = int(first_fitting(state.arrays, partition, position + 1))
    return found


def apply(state: ClusterState, decision: Decision, now_s: float) -> None:
    """Apply one decision to the state and count it.

    Raises:
        AllocationError: the action is not legal, and was not applied.
    """
    action = decision.action
    if isinstance(action, Start):
        state.start(
            action.seq,
            action.gpus,
            now_s,
            share_milli=action.share_milli,
            sm_clock_frac=action.sm_clock_frac,
            node=action.node,
            share_with=action.share_with,
            cpu_milli_each=action.cpu_milli_each,
            by_engine=decision.source == "engine",
        )
    elif isinstance(action, Preempt):
        state.preempt(action.seq, now_s, moved_for=action.moved_for)
    else:
        action.check(now_s)
    state.count_decision()
