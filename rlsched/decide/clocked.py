"""A scheduler that knows nothing of clocks, with a clock for each of its starts, where models choose them."""

from __future__ import annotations

import msgspec

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.candidates import clock_of, policy_abilities
from rlsched.decide.scheduler import (
    Decision,
    Information,
    Order,
    Scheduler,
    may_preempt,
    may_reclock,
    may_share,
    weighs_clocks,
)


class Clocked:
    """The scheduler's own decisions; a start gets the clock that the reference rule would give the job there.

    Where nobody chooses clocks, or energy counts nothing for the job, that is the full one.

    Attributes:
        name: The scheduler's, as everything that is not said otherwise.
        order: Likewise.
        information: Likewise.
        preempts: Likewise.
        shares: Likewise.
        reclocks: Likewise.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.name: str = scheduler.name
        self.order: Order = scheduler.order
        self.information: Information = scheduler.information
        self.preempts, self.shares = may_preempt(scheduler), may_share(scheduler)
        self.reclocks = may_reclock(scheduler)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The scheduler's decision, with a clock."""
        decision = self._scheduler.decide(state, partition, now_s, record=record)
        action = decision.action
        if not isinstance(action, Start) or action.beside >= 0:
            return decision
        clock = clock_of(state, partition, action.seq, action.gpus, policy_abilities(state))
        if clock == action.sm_clock_frac:
            return decision
        action = msgspec.structs.replace(action, sm_clock_frac=clock)
        noted = decision.record and msgspec.structs.replace(decision.record, action=action)
        return msgspec.structs.replace(decision, action=action, record=noted)


def with_clocks(scheduler: Scheduler) -> Scheduler:
    """The scheduler, or, where it does not choose clocks itself, one that has them chosen."""
    return scheduler if weighs_clocks(scheduler) else Clocked(scheduler)
