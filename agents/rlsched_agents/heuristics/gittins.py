"""`gittins`: the job whose completion costs least service goes first, and may take others' places."""

from __future__ import annotations

import math

import msgspec

from rlsched.cluster.state import ClusterState
from rlsched.decide.abilities import Abilities
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.candidates import job_candidates, join_action, start_action
from rlsched.decide.gittins import Gittins
from rlsched.decide.index_walk import IndexRule, next_by_index, next_look_s
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Decision, Information, Order
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.queue_order import row_of


class ByIndex:
    """An `IndexRule` as a scheduler: one preemption or start at a time, then *wait* until an age counts."""

    def __init__(self, rule: IndexRule) -> None:
        self.rule = rule
        self.name: str = rule.name
        self.order: Order = rule.order
        self.information: Information = rule.information

    @property
    def preempts(self) -> bool:
        """Whether it may answer `Preempt`."""
        return self.rule.preempts

    @property
    def needs_models(self) -> bool:
        """Whether it has abilities, which models alone make legal."""
        return self.rule.abilities.needed

    @property
    def shares(self) -> bool:
        """Whether it may start jobs on GPUs that others have."""
        return self.rule.abilities.share != "never"

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Preempt or start the next job of the walk, or wait."""
        recording = Recording(state, partition, now_s, wanted=record)
        window = job_candidates(state, partition, now_s) if record else None
        arrays, rule = state.arrays, self.rule
        code, can = rule.index.code, rule.abilities
        out, into, beside = next_by_index(arrays, partition, now_s, code, can.code, rule.preempts)
        action: Action
        row = -1  # a preemption is in no window
        if out >= 0:
            action = Preempt(seq=int(arrays.job.seq[out]))
        elif into >= 0:
            seq = int(arrays.job.seq[into])
            if beside >= 0:
                action = join_action(state, partition, seq, int(arrays.job.seq[beside]), can)
            else:
                action = start_action(state, partition, seq, can=can)
            row = row_of(window, seq) if window is not None else -1
        else:
            until_s = float(next_look_s(arrays, partition, now_s, code, rule.preempts))
            action, row = Wait(until_s=until_s if math.isfinite(until_s) else None), 0
        halves = [window.half(None, row)] if window is not None else []
        return recording.decision(action, "rule", self.name, halves=halves)

    def with_abilities(self, name: str, abilities: Abilities) -> ByIndex:
        """The same rule with abilities, under another name."""
        return ByIndex(msgspec.structs.replace(self.rule, name=name, abilities=abilities))


def gittins(index: Gittins | None = None, *, name: str = "gittins") -> IndexRule:
    """The rule `gittins`; see `make_gittins`."""
    return IndexRule(name=name, order="submit", index=index or Gittins())


def make_gittins(argument: str, _seed: int) -> ByIndex:
    """The least Gittins index first, preemptive, by predictions and attained service (`decide.gittins`).

    `gittins:SPREAD` and `gittins:SPREAD,TRUST,POWER,MARGIN` set how the index is made.

    Raises:
        UnknownSchedulerError: the argument is no such figures.
    """
    if not argument:
        return ByIndex(gittins())
    words = argument.split(",")
    try:
        figures = [float(word) for word in words]
    except ValueError:
        figures = []
    known = ("spread", "trust", "gpus_power", "margin")
    if not 1 <= len(figures) <= len(known) or not all(0 <= figure <= 10 for figure in figures):
        raise UnknownSchedulerError(
            "policy 'gittins' takes up to four figures from 0 to 10, SPREAD,TRUST,POWER,MARGIN "
            f"(gittins:2.5,0,0.7,0.5), got {argument!r}"
        )
    index = msgspec.structs.replace(Gittins(), **dict(zip(known, figures, strict=False)))
    return ByIndex(gittins(index, name=f"gittins:{argument}"))
