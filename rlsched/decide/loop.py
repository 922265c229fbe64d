"""The decision loop of one instant: simulator and broker run it after every batch of events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rlsched.cluster.arrays import CLOCKS_ALONE, columns
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.plans.holds import has_released, has_startable
from rlsched.decide.record import JobName, with_names
from rlsched.decide.rows.candidates import hold, job_candidates
from rlsched.decide.scheduler import Decision, Scheduler


def decide_all(
    state: ClusterState,
    scheduler: Scheduler,
    now_s: float,
    *,
    record: bool = False,
    job_name: JobName | None = None,
) -> Iterator[tuple[int, Decision]]:
    """Let the scheduler decide for each partition until it waits, and apply its decisions to the state.

    The scheduler decides for a partition while a waiting job can start there. A scheduler that preempts or
    shares decides while any job waits there. If a start in another partition ended a hold, the scheduler
    decides for the partition again. After each pass with a preemption it decides for all partitions again,
    because a job can wait for two partitions.

    Yields (partition, decision) after each decision has been applied; a *wait* only if another action was
    possible. If `job_name` is given, records contain the names of their jobs and nodes.
    """
    can = scheduler.abilities
    shares = (
        can.shares and state.needs.models and int(columns(state.arrays.config)["modelled"][0]) != CLOCKS_ALONE
    )
    waits = state.arrays.order.may_change and not columns(state.arrays.config)["preempts"][0]
    always = (can.preempts and not waits) or shares
    first, started, preempted = True, True, False
    scheduler.begin_instant(state, now_s)
    while started:
        everywhere = first or preempted
        first, started, preempted = False, False, False
        for partition in range(state.num_partitions):
            if not everywhere and not has_released(state, partition, now_s):
                continue
            while has_startable(state, partition, now_s) or (always and len(state.queue(partition))):
                decision = scheduler.decide(state, partition, now_s, record=record)
                if decision.record is not None and job_name is not None:
                    named = with_names(decision.record, job_name, state.node_names)
                    decision = msgspec.structs.replace(decision, record=named)
                apply(state, partition, decision, now_s)
                yield partition, decision
                if isinstance(decision.action, Wait):
                    break
                started = True
                preempted = preempted or isinstance(decision.action, Preempt)


def apply(state: ClusterState, partition: int, decision: Decision, now_s: float) -> None:
    """Apply one decision to the state and count it.

    Raises:
        AllocationError: the action is not legal; the state is untouched.
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
        if decision.marks_hold:
            hold(state, job_candidates(state, partition, now_s), now_s)
    state.count_decision()
