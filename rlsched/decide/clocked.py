"""SM clocks for a scheduler that knows nothing of them, where models choose clocks."""

from __future__ import annotations

import math

import msgspec

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.candidates import clock_of, has_startable, policy_abilities, reclock_action
from rlsched.decide.orders import Order
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import (
    Decision,
    Information,
    Scheduler,
    may_preempt,
    may_share,
    revises_predictions,
    weighs_clocks,
)


class Clocked:
    """A scheduler's own decisions; its starts get the clocks that the reference rule would give them there.

    A scheduler that chooses the clocks of its starts itself (`weighs_clocks`) goes on doing so. Where nobody
    chooses clocks, or energy counts nothing for the job, the clock is the full one.

    Args:
        scheduler: Who decides.
        dwell_s: Running jobs follow the queue, but keep a clock for so long at least, seconds; infinite:
            until they end. Looked at where the scheduler starts nothing more.

    Attributes:
        name: The scheduler's, as everything that is not said otherwise.
        order: Likewise.
        information: Likewise.
        preempts: Likewise.
        shares: Likewise.
        revises: Likewise.
        reclocks: Whether it changes the clocks of running jobs.
    """

    weighs_clocks = True

    def __init__(self, scheduler: Scheduler, dwell_s: float = math.inf) -> None:
        self._scheduler, self._dwell_s = scheduler, dwell_s
        self._starts_clocked = weighs_clocks(scheduler)
        self.name: str = scheduler.name
        self.order: Order = scheduler.order
        self.information: Information = scheduler.information
        self.preempts, self.shares = may_preempt(scheduler), may_share(scheduler)
        self.reclocks = dwell_s < math.inf
        self.revises = revises_predictions(scheduler)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The scheduler's decision with a clock, another clock for a running job, or *wait*."""
        if not state.arrays.config[0].modelled:
            return self._scheduler.decide(state, partition, now_s, record=record)
        recording = Recording(state, partition, now_s, wanted=record and self.reclocks)
        if not self.reclocks or self._may_start(state, partition, now_s):
            decision = self._scheduler.decide(state, partition, now_s, record=record)
            if not (self.reclocks and isinstance(decision.action, Wait)):
                return self._with_clock(state, partition, decision)
        else:
            decision = recording.decision(Wait(), "automatic", self.name)
        able = msgspec.structs.replace(policy_abilities(state), dwell_s=self._dwell_s)
        change = reclock_action(state, partition, now_s, able)
        return decision if change is None else recording.decision(change, "rule", self.name)

    def _may_start(self, state: ClusterState, partition: int, now_s: float) -> bool:
        """Whether the scheduler would be asked if it did not change clocks (`decide_all`)."""
        waits = (self.preempts or self.shares) and len(state.queue(partition)) > 0
        return waits or has_startable(state, partition, now_s)

    def _with_clock(self, state: ClusterState, partition: int, decision: Decision) -> Decision:
        action = decision.action
        if self._starts_clocked or not isinstance(action, Start) or action.beside >= 0:
            return decision
        clock = clock_of(state, partition, action.seq, action.gpus, policy_abilities(state))
        if clock == action.sm_clock_frac:
            return decision
        action = msgspec.structs.replace(action, sm_clock_frac=clock)
        noted = decision.record and msgspec.structs.replace(decision.record, action=action)
        return msgspec.structs.replace(decision, action=action, record=noted)


def with_clocks(scheduler: Scheduler, dwell_s: float = math.inf) -> Scheduler:
    """The scheduler, or one that has clocks chosen where it does not."""
    if weighs_clocks(scheduler) and dwell_s == math.inf:
        return scheduler
    return Clocked(scheduler, dwell_s)
