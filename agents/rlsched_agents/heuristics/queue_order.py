"""FIFO, SJF and QSSF, blocking and with backfill: one rule each, all through the `Scheduler` interface."""

from __future__ import annotations

import math

import msgspec

from rlsched.cluster.state import ClusterState
from rlsched.decide.abilities import Abilities
from rlsched.decide.actions import Action, SetClock, Wait
from rlsched.decide.candidates import Window, job_candidates, join_action, reclock_action, start_action
from rlsched.decide.orders import Order
from rlsched.decide.recording import Recording
from rlsched.decide.rules import Rule, next_by_rule, next_move, next_to_start
from rlsched.decide.scheduler import Decision, Information
from rlsched.errors import UnknownSchedulerError


class QueueOrder:
    """A `Rule` as a scheduler: start the job that it names, or wait where it names none.

    A rule knows no holds: in a policy's place (`decide.guard`) it may start a job that a *wait* keeps back.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.name: str = rule.name
        self.order: Order = rule.order
        self.information: Information = rule.information

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start the rule's next job on the GPUs that *consolidate* picks, or wait."""
        recording = Recording(state, partition, now_s, wanted=record)
        window = job_candidates(state, partition, now_s) if record else None
        slot, beside = self._next(state, partition, now_s)
        seq = int(state.arrays.job.seq[slot]) if slot >= 0 else -1
        action: Action = Wait()
        if beside >= 0:
            action = join_action(
                state, partition, seq, int(state.arrays.job.seq[beside]), self.rule.abilities
            )
        elif seq >= 0:
            action = start_action(state, partition, seq, can=self.rule.abilities)
        elif self.reclocks:
            action = reclock_action(state, partition, now_s, self.rule.abilities) or action
        row = -1 if isinstance(action, SetClock) or window is None else row_of(window, seq)
        halves = [window.half(None, row)] if window is not None else []
        return recording.decision(action, "rule", self.name, halves=halves)

    def _next(self, state: ClusterState, partition: int, now_s: float) -> tuple[int, int]:
        """(slot of the job to start, slot of the one to share with), -1 for none."""
        if self.rule.abilities.share != "never":
            return next_move(state.arrays, partition, self.rule.code, now_s)
        if self.rule.kind == "plain":
            return next_by_rule(state.arrays, partition, self.rule.blocks), -1
        return next_to_start(state.arrays, partition, self.rule.code, now_s), -1

    def with_abilities(self, name: str, abilities: Abilities) -> QueueOrder:
        """The same rule with more abilities, under another name; a rule that shares goes on doing so.

        Raises:
            UnknownSchedulerError: it shares GPUs by itself, and is told how to.
        """
        own = self.rule.abilities
        if own.share != "never":
            if abilities.share != "never":
                raise UnknownSchedulerError(
                    f"policy {name!r}: {self.name!r} shares GPUs by itself and takes no +share"
                )
            abilities = msgspec.structs.replace(abilities, share=own.share, keep_frac=own.keep_frac)
        return QueueOrder(msgspec.structs.replace(self.rule, name=name, abilities=abilities))

    @property
    def needs_models(self) -> bool:
        """Whether it has abilities, which models alone make legal."""
        return self.rule.abilities.needed

    @property
    def reclocks(self) -> bool:
        """Whether it may change the clocks of running jobs."""
        return self.rule.abilities.dwell_s < math.inf

    @property
    def shares(self) -> bool:
        """Whether it may start jobs on GPUs that others have: it is asked even where none is free."""
        return self.rule.abilities.share != "never"


def row_of(window: Window, seq: int) -> int:
    """Row of a job in a window (0, *wait*, for seq -1); -1 where the window does not show it."""
    if seq < 0:
        return 0
    rows = (window.seqs == seq).nonzero()[0]
    return int(rows[0]) if rows.size else -1


RULES = {
    rule.name: rule
    for rule in (
        Rule(name="fifo", order="submit", blocks=True),
        Rule(name="sjf", order="predicted", blocks=True, information="oracle"),
        Rule(name="qssf", order="predicted_gpu_time", blocks=True),
        Rule(name="fifo-backfill", order="submit", blocks=False),
        Rule(name="sjf-backfill", order="predicted", blocks=False, information="oracle"),
        Rule(name="qssf-backfill", order="predicted_gpu_time", blocks=False),
    )
}


def make_fifo(argument: str, _seed: int) -> QueueOrder:
    """First in, first out; the queue blocks."""
    return _make("fifo", argument)


def make_sjf(argument: str, _seed: int) -> QueueOrder:
    """Shortest job first by true duration; the queue blocks."""
    return _make("sjf", argument)


def make_qssf(argument: str, _seed: int) -> QueueOrder:
    """Quasi-shortest service first (Hu et al., SC'21): predicted run time x GPUs; the queue blocks.

    Ours differs in the predictor: a causal running mean instead of boosted trees.
    """
    return _make("qssf", argument)


def make_fifo_backfill(argument: str, _seed: int) -> QueueOrder:
    """First in, first out; jobs that do not fit are skipped."""
    return _make("fifo-backfill", argument)


def make_sjf_backfill(argument: str, _seed: int) -> QueueOrder:
    """Shortest job first by true duration; jobs that do not fit are skipped."""
    return _make("sjf-backfill", argument)


def make_qssf_backfill(argument: str, _seed: int) -> QueueOrder:
    """QSSF; jobs that do not fit are skipped. The reference rule of the features and of training."""
    return _make("qssf-backfill", argument)


def _make(name: str, argument: str) -> QueueOrder:
    if argument:
        raise UnknownSchedulerError(f"policy {name!r} takes no argument, got {argument!r}")
    return QueueOrder(RULES[name])
