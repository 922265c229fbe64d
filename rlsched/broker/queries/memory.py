"""The last decision record of each job, for `rlsched why`."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable

from rlsched.decide.actions import Preempt, Start
from rlsched.decide.record import DecisionRecord

MAX_JOBS = 5_000
"""Maximum number of jobs with a record in memory (about 1.3 KB each). A restarted broker reads this number of
records.
"""


class RecordMemory:
    """The last decision record of each job, by the job's sequence number in the cluster state.

    The last decision of a job is the latest decision that considered (`DecisionRecord.turn`), started or
    preempted the job.

    Args:
        records: Earlier records, oldest first.
    """

    def __init__(self, records: Iterable[DecisionRecord] = ()) -> None:
        self._last: OrderedDict[int, DecisionRecord] = OrderedDict()
        self._latest: dict[str, DecisionRecord] = {}
        self._preempted: list[tuple[DecisionRecord, set[int]]] = []  # (preemption, its GPUs), at one instant
        self._made_room: dict[int, tuple[int, list[DecisionRecord]]] = {}
        for record in records:
            with contextlib.suppress(Exception):  # an invalid record is left out
                self.add(record)

    def add(self, record: DecisionRecord) -> None:
        """Store the record of a decision."""
        self._note_room(record)
        seqs = {record.turn}
        self._latest[record.partition] = record
        if isinstance(record.action, Start | Preempt):
            seqs.add(record.action.seq)
        for seq in seqs - {-1}:
            self._last[seq] = record
            self._last.move_to_end(seq)
        while len(self._last) > MAX_JOBS:
            seq, _ = self._last.popitem(last=False)
            self._made_room.pop(seq, None)

    def _note_room(self, record: DecisionRecord) -> None:
        """If the record is of a start, store which preemptions made room for the started job.

        These preemptions were decided at the same instant as the start. They were decided for this job, or
        they freed some of the GPUs that the job got. If the record is of a preemption, store the record, for
        the starts that follow.
        """
        action = record.action
        if self._preempted and self._preempted[-1][0].now_s != record.now_s:
            self._preempted.clear()
        if isinstance(action, Preempt):
            last = self._last.get(action.seq)
            start = None if last is None else last.action
            gpus = set(start.gpus) if isinstance(start, Start) and start.seq == action.seq else set()
            self._preempted.append((record, gpus))
        elif isinstance(action, Start):
            made = [
                one
                for one, gpus in self._preempted
                if action.seq in (one.turn, _moved_for(one)) or not gpus.isdisjoint(action.gpus)
            ]
            self._made_room.pop(action.seq, None)
            if made:
                self._made_room[action.seq] = record.number, made

    def made_room(self, seq: int, number: int) -> list[DecisionRecord]:
        """Return the decisions that preempted other jobs so that decision `number` could start job `seq`."""
        start, made = self._made_room.get(seq, (-1, []))
        return made if start == number else []

    def last_record(self, seq: int, partitions: Iterable[str] = ()) -> DecisionRecord | None:
        """Return the last record of job `seq`.

        If there is none, return the latest record of any job in the partitions `partitions`, or else None.
        """
        found = [self._latest[name] for name in partitions if name in self._latest]
        return self._last.get(seq) or max(found, key=lambda record: record.number, default=None)


def _moved_for(record: DecisionRecord) -> int:
    return record.action.moved_for if isinstance(record.action, Preempt) else -1
