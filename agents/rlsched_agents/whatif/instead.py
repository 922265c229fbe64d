"""Computes what would have happened after another choice at one decision."""

from __future__ import annotations

import math
from typing import Any

from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.candidates import Candidate, candidate, candidates
from rlsched.decisions.decision_text import done
from rlsched.decisions.difference import difference
from rlsched.decisions.reading import StoreReader, parts
from rlsched.decisions.story import J_PER_KWH, when
from rlsched.decisions.timeline import Timeline
from rlsched.errors import InputError
from rlsched_agents.evaluate.origin import task_of
from rlsched_agents.evaluate.recording import job_events
from rlsched_agents.evaluate.task import Task, engine_of
from rlsched_agents.whatif.course import Course, Watch
from rlsched_agents.whatif.other_choice import OtherChoice

HOUR_S = 3600.0


def instead(
    reader: StoreReader, row: int, asked: str, *, hours: float, within_s: float = math.inf
) -> dict[str, Any]:
    """Replace the choice at a decision, continue with the same policy, and compare with the recorded events.

    Args:
        reader: Reader of the store.
        row: Row of the decision.
        asked: The candidate to choose: `Candidate.number`, or `rule` for the rule's choice.
        hours: How long to continue after the decision, hours; infinite: to the end.
        within_s: Time limit of the computation, seconds.

    Raises:
        InputError: the candidate does not exist or is not possible, or the store cannot be replayed.
        RlschedError: the time limit is exceeded.
    """
    record, watch = reader.record(row), Watch(within_s)
    choice = candidate(record, asked)
    to_s = record.now_s + hours * HOUR_S
    if reader.info.time == "unix":
        from rlsched_agents.whatif.from_journal import courses
    else:
        courses = _replays
    was, other = courses(reader, record, choice, to_s, watch)
    known_s, last_s = min(was.to_s, other.to_s), max(was.last_s, other.last_s)
    found = difference(
        was.timeline, other.timeline, record.now_s, known_s if math.isfinite(known_s) else last_s
    )
    by_predictions = max(was.by_predictions, other.by_predictions)
    taken = next((one.words for one in candidates(record) if one.taken), "")
    return found | {
        "row": row,
        "number": record.number,
        "when": when(reader, record.now_s),
        "until": when(reader, found["to_s"]),
        "hours": (found["to_s"] - record.now_s) / HOUR_S,
        "whole": last_s < to_s <= known_s,
        "did": done(record),
        "taken": taken,
        "instead": choice.words,
        "candidate": choice.number,
        "by_predictions": by_predictions,
        "energy_kwh": None if was.energy_j is None else was.energy_j / J_PER_KWH,
        "other_energy_kwh": None if other.energy_j is None else other.energy_j / J_PER_KWH,
        "took_s": watch.took_s(),
    }


def _replays(
    reader: StoreReader, record: DecisionRecord, choice: Candidate, to_s: float, watch: Watch
) -> tuple[Course, Course]:
    """Return two courses of events after a decision of a replay: as recorded, and after another choice.

    The recorded course is read from the store, with two exceptions. If the run had models, the course is
    replayed, because the store has no energy at intermediate times. If the store is large, the course is
    replayed, because only a part of the store is read.
    """
    task = task_of(reader.folder)
    other = replayed(task, record, choice, to_s, watch)
    if task.models is not None or len(parts(reader.folder)) > 1:
        return replayed(task, record, None, to_s, watch), other
    return Course(reader.timeline, other.to_s, reader.timeline.last_s), other


def replayed(
    task: Task, record: DecisionRecord, choice: Candidate | None, to_s: float, watch: Watch
) -> Course:
    """Replay a task with another choice at one decision, and return the course of events.

    `choice`: the other choice; None: the choice that the policy makes itself.

    Raises:
        InputError: the replay does not reproduce the decision, or the choice is not possible.
        RlschedError: the time limit is exceeded.
    """
    scheduler = OtherChoice(load_scheduler(task.policy, seed=task.seed), record, choice)
    engine = engine_of(task, scheduler)
    table = engine.run(scheduler, until_started=task.until_started, until_s=to_s, on_instant=watch.check_time)
    if not scheduler.met:
        raise InputError(
            f"the replay of this store does not reach decision {record.number}; make the store again with "
            "`rlsched evaluate --records`"
        )
    timeline = Timeline()
    timeline.add(list(job_events(table, task.predictions.predicted_s)))
    energy = table.energy
    drawn_j = None if energy is None else energy.idle_j + float(energy.job_j.sum())
    known_s = to_s if math.isinf(task.window.until_s) else min(to_s, engine.now_s)
    return Course(timeline, known_s, engine.now_s, drawn_j)
