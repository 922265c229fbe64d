"""Computes what would have happened in a broker after another choice at one decision.

The state before the decision is rebuilt from the broker's journal. Then the policy decides again. External
events (submissions, cancellations, changes of nodes) happen as recorded. A job ends after its recorded run
time, or after its predicted run time if none is recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlsched.broker.base.entries import (
    AttemptEnding,
    BrokerStarted,
    Decided,
    GpuMemoryLimited,
    GpuMemorySeen,
    GpusHeld,
    JobCancelled,
    JobHeld,
    JobsRanked,
    JobSubmitted,
    JobUnshared,
    JobUpdated,
    MemberSet,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeSlept,
    NodeUp,
    NodeWoken,
    PairSeen,
    QuotaSet,
    TasksCancelled,
    TasksHeld,
    TaskSubmitted,
)
from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.reading import read_journal
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.candidates import Candidate
from rlsched.decisions.deciders import decider_at
from rlsched.decisions.reading import StoreReader
from rlsched.errors import InputError
from rlsched_agents.whatif.continued_state import Ends, Life
from rlsched_agents.whatif.course import Course, Watch

_OUTSIDE: Final = (
    BrokerStarted,
    NodeUp,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeResumed,
    NodeSlept,
    NodeWoken,
    NodeHealth,
    NodeRemoved,
    GpusHeld,
    GpuMemoryLimited,
    JobSubmitted,
    JobCancelled,
    JobHeld,
    JobUpdated,
    JobsRanked,
    TaskSubmitted,
    TasksHeld,
    TasksCancelled,
    QuotaSet,
    MemberSet,
    AttemptEnding,
    PairSeen,
    GpuMemorySeen,
    JobUnshared,
)
"""Types of journal entries that do not depend on decisions, including requests to end an attempt."""


def courses(
    reader: StoreReader, record: DecisionRecord, choice: Candidate, to_s: float, watch: Watch
) -> tuple[Course, Course]:
    """Return two courses of events after a decision of a broker: as recorded, and after another choice.

    Raises:
        InputError: the journal does not have the decision, or the choice is not possible.
        JournalError: there is no journal next to the store, or the journal is damaged.
        RlschedError: the time limit is exceeded.
    """
    path = Path(reader.folder).parent / JOURNAL_FILE
    if not path.is_file():
        raise InputError(
            f"{path}: expected the journal of the broker that made these decisions, found none; put the "
            "journal next to the store"
        )
    rows = read_journal(path)
    at = next(
        (
            k
            for k in range(len(rows) - 1, -1, -1)
            if isinstance(entry := rows[k].entry, Decided)
            and entry.number == record.number
            and rows[k].now_s == record.now_s
        ),
        -1,
    )
    if at < 0:
        raise InputError(
            f"{path}: decision {record.number} is not in the journal: the journal has been compacted since "
            "the decision was recorded, or has a different decision with this number; choose a later decision"
        )
    policy = decider_at(Path(reader.folder), record.now_s)
    was, other = (Life(load_scheduler(policy), watch) for _ in range(2))
    was.follow(rows)
    ends, last_s = Ends(was.past_events()), was.state.now_s
    if last_s < to_s:
        last_s = was.go_on(ends, [], to_s)
    if choice.taken:
        other.follow(rows[: at + 1])
    else:
        other.follow(rows[:at])
        other.choose(record, choice)
    outside = [row for row in rows[at + 1 :] if isinstance(row.entry, _OUTSIDE)]
    other_last_s = other.go_on(ends, outside, to_s)
    by_predictions = len(ends.by_predictions)
    return (
        Course(was.past_events(), to_s, last_s, None, by_predictions),
        Course(other.past_events(), to_s, other_last_s, None, by_predictions),
    )
