"""Rules that preempt as schedulers: one preemption or start at a time, then *wait* until they look again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from rlsched.cluster.state import ClusterState
from rlsched.decide.abilities import Abilities
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.candidates import job_candidates, join_action, reclock_action, start_action
from rlsched.decide.orders import Order
from rlsched.decide.recording import Recording
from rlsched.decide.rules import Rule
from rlsched.decide.scheduler import Decision, Information
from rlsched_agents.heuristics.queue_order import row_of


class Moves(ABC):
    """What such a rule says next becomes a decision; each partition is asked by itself."""

    def __init__(self, rule: Rule) -> None:
        self.name: str = rule.name
        self.order: Order = rule.order
        self.information: Information = rule.information
        self._can: Abilities = rule.abilities

    @property
    def reclocks(self) -> bool:
        """Whether it may change the clocks of running jobs."""
        return self._can.dwell_s < math.inf

    @abstractmethod
    def _next(self, state: ClusterState, partition: int, now_s: float) -> tuple[int, int, int, int]:
        """(slot to preempt, slot to start, running slot it shares GPUs with, waiting slot that the preempted
        one is moved for), each -1: what comes next."""

    @abstractmethod
    def _look_s(self, state: ClusterState, partition: int, now_s: float) -> float:
        """When the rule may say something new though no event happens until then; infinite: never."""

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Preempt or start the rule's next job, change a running job's clock, or wait."""
        recording = Recording(state, partition, now_s, wanted=record)
        window = job_candidates(state, partition, now_s) if record else None
        out, into, beside, gang = self._next(state, partition, now_s)
        number = state.arrays.job.seq
        action: Action
        row = -1  # a preemption and a change of clock are in no window
        if out >= 0:
            action = Preempt(seq=int(number[out]), moved_for=int(number[gang]) if gang >= 0 else -1)
        elif into >= 0:
            seq = int(number[into])
            if beside >= 0:
                action = join_action(state, partition, seq, int(number[beside]), self._can)
            else:
                action = start_action(state, partition, seq, can=self._can)
            row = row_of(window, seq) if window is not None else -1
        elif self.reclocks and (change := reclock_action(state, partition, now_s, self._can)) is not None:
            action = change
        else:
            until_s = float(self._look_s(state, partition, now_s))
            action, row = Wait(until_s=until_s if math.isfinite(until_s) else None), 0
        halves = [window.half(None, row)] if window is not None else []
        return recording.decision(action, "rule", self.name, halves=halves)
