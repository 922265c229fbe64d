"""Histories of jobs, and decisions, as data for `rlsched explain` and for the tab «Decisions»."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from rlsched.decide.record import DecisionRecord
from rlsched.decisions import decision_text
from rlsched.decisions.candidates import candidates, numbers_of_plans
from rlsched.decisions.past_queue import queue_at, rows_around
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.timeline import AttemptSeen, JobSeen, class_name
from rlsched.errors import InputError
from rlsched.wire.states import QUEUED, RUNNING

MOST_QUEUED: Final = 200
MOST_BEFORE: Final = 256
"""Maximum number of earlier decisions that are searched for the last change of prices."""
J_PER_KWH: Final = 3.6e6


def when(reader: StoreReader, at_s: float) -> str:
    """Return a time of a store as text: local date and time, or days and time since the trace's start."""
    return time_text(reader.info.time, at_s)


def time_text(kind: str, at_s: float) -> str:
    """Return a time as text: local date and time (`kind` is `unix`), or days and time (`trace`)."""
    if not math.isfinite(at_s):
        return ""
    if kind == "unix":
        return time.strftime("%F %T", time.localtime(at_s))
    days, left = divmod(round(at_s), 86_400)
    return f"day {days} {left // 3600:02d}:{left % 3600 // 60:02d}:{left % 60:02d}"


def decision_at(reader: StoreReader, at_s: float) -> int | None:
    """Return the row of the last decision at or before a time; None if there is no such decision."""
    return next(iter(rows_around(reader, at_s)[0]), None)


def decision(reader: StoreReader, row: int) -> dict[str, Any]:
    """Return a decision as data: source, action, plans with values, prices, and the state just before it."""
    record = reader.record(row)
    return {
        "row": row,
        "number": record.number,
        "time_s": record.now_s,
        "when": when(reader, record.now_s),
        "partition": record.partition,
        "source": record.source,
        "by": decision_text.decided_by(record),
        "did": decision_text.done(record),
        "kind": reader.cells(row)["kind"],
        "job": reader.cells(row)["job"],
        "turn": reader.cells(row)["turn"],
        "guard": record.guard,
        "took_us": record.took_us,
        "plans": _plans(record),
        "candidates": [
            {"number": one.number, "words": one.words, "taken": one.taken} for one in candidates(record)
        ],
        "prices": dict(decision_text.prices_in_words(record)),
        "price_change": _price_change(reader, row, record),
        "plans_failed": record.plans_failed,
        "met": _met(reader, row),
        "digest": record.state_digest,
    }


def _price_change(reader: StoreReader, row: int, record: DecisionRecord) -> dict[str, Any] | None:
    """Return the last change of the policy's prices before a decision, in the partition of the decision.

    The result has the first decision with the new prices, the cluster's state at that time, and the old
    prices. None: the decision has no prices, or they did not change in the `MOST_BEFORE` rows before it.

    Args:
        reader: The store.
        row: Row of the decision.
        record: Record of the decision.
    """
    if not record.prices:
        return None
    first = row
    for before in range(row - 1, max(row - 1 - MOST_BEFORE, -1), -1):
        try:
            other = reader.record(before)
        except InputError:  # a damaged record
            continue
        if other.partition != record.partition or not other.prices:
            continue
        if other.prices != record.prices:
            at_s = float(reader.times_s[first])
            return {
                "row": first,
                "number": int(reader.numbers[first]),
                "when": when(reader, at_s),
                "met": _met(reader, first),
                "before": dict(decision_text.prices_in_words(other)),
            }
        first = before
    return None


def _plans(record: DecisionRecord) -> list[dict[str, Any]]:
    """Return the plans of a decision as data and text, in the order of `decision_text.ranked_plans`."""
    described, numbers = decision_text.ranked_plans(record), numbers_of_plans(record)
    position = {id(plan): at for at, plan in enumerate(record.plans)}
    return [
        {
            "candidate": numbers.get(position[id(plan)]),
            "words": said,
            "outcome": what,
            "how": plan.how,
            "chosen": plan.chosen,
            "open": not plan.verdict,
            "node": plan.node,
            "gpu_type": plan.gpu_type,
            "share_with": record.names.jobs.get(plan.share_with, "") if plan.share_with >= 0 else "",
            "tenants": plan.tenants,
            "speed_frac": plan.speed_frac,
            "gain_frac": plan.gain_frac,
            "asked_frac": plan.asked_frac,
            "sm_clock_frac": plan.sm_clock_frac,
            "cpu_milli_each": plan.cpu_milli_each,
            "wait_s": plan.wait_s,
            "run_s": plan.run_s,
            "power_w": plan.power_w,
            "worth": plan.worth,
        }
        for plan, said, what in described
    ]


def _levels(reader: StoreReader, at_s: float) -> dict[str, float]:
    """Return counts of the cluster after a time's events: waiting jobs by size class, busy and all GPUs."""
    return {name: float(n[0]) for name, n in reader.timeline.curves(np.array([at_s])).items()}


def _met(reader: StoreReader, row: int) -> dict[str, float]:
    """Return the counts of `_levels` that a decision met.

    A decision usually follows a submission or an end at the same instant, so these events are included. The
    effects of this decision and of later decisions of the same instant are not.
    """
    at_s, table = float(reader.times_s[row]), reader.timeline.table
    found, changed = _levels(reader, at_s), dict[str, Any]()
    rows = (row + np.flatnonzero(reader.times_s[row:] == at_s)).tolist()
    acts = list(zip(reader.values("kind", rows), reader.values("job", rows), strict=True))
    for kind, sign, there in (
        ("start", 1.0, table.start_s == at_s),
        ("preempt", -1.0, (table.end_s == at_s) & (table.start_s < at_s)),
    ):
        jobs = {job for one, job in acts if one == kind}
        attempts = np.flatnonzero(there) if jobs else np.zeros(0, np.int64)
        about = reader.timeline.about(table.job[attempts]) if len(attempts) else []
        for job in about:
            if job["job"] in jobs:
                found[f"waiting {class_name(job['num_gpus'])}"] += sign
        changed[kind] = attempts[np.array([job["job"] in jobs for job in about], np.bool_)]
    found["busy_gpus"] = reader.timeline.busy_gpus_met(at_s, changed["preempt"], changed["start"])
    return found


def job_of(reader: StoreReader, job: str) -> JobSeen:
    """Return the job with this displayed ID.

    Raises:
        InputError: the store has no such job.
    """
    found = reader.timeline.job(job)
    if found is None:
        known = reader.timeline.names
        tasks = [one for one in known if one.startswith(f"{job}_")]
        if tasks:
            have = f"{job} is an array whose tasks are in the store: name a task, such as {tasks[-1]}"
        elif known:
            have = f"the store has {len(known):,} jobs, {known[0]} (the first) to {known[-1]} (the last)"
        else:
            have = "the store has no jobs yet"
        raise InputError(f"{reader.folder}: no job {job!r} in this store; {have}")
    return found


def job_story(reader: StoreReader, job: JobSeen, at_s: float | None = None) -> dict[str, Any]:
    """Return the history of a job as data, with the decision that started each attempt.

    If the job waits, or `at_s` is given, the history also has the last decision about the job.

    Args:
        reader: The store.
        job: The job.
        at_s: Time, seconds, up to which the last decision is searched; None: no limit.
    """
    rows = reader.rows_about(job.job)
    story = {
        "job": job.job,
        "name": job.name,
        "user": job.user,
        "vc": job.vc,
        "num_gpus": job.num_gpus,
        "submit_s": _finite(job.submit_s),
        "submitted": when(reader, job.submit_s),
        "predicted_s": _finite(job.predicted_s),
        "state": state_of(job),
        "reason": job.reason,
        "end_s": _finite(job.end_s),
        "attempts": [_attempt(reader, one) for one in job.attempts],
        "decisions": [int(reader.numbers[row]) for row in rows],
    }
    shown = [row for row in rows if at_s is None or reader.times_s[row] <= at_s]
    waits = not job.attempts or job.attempts[-1].end_s < math.inf == job.end_s
    if shown and (at_s is not None or waits):
        story["decision"] = decision(reader, shown[-1])
    return story


def last_start(reader: StoreReader, job: JobSeen, at_s: float | None = None) -> int:
    """Return the row of the last decision that started an attempt of a job.

    If the store has no such decision, return the row of the last decision about the job.

    Args:
        reader: The store.
        job: The job.
        at_s: Time, seconds; later decisions are ignored. None: no decision is ignored.

    Raises:
        InputError: the store has no decision about the job.
    """
    by_s = math.inf if at_s is None else at_s
    for seen in reversed(job.attempts):
        row = _row_of_start(reader, seen) if seen.start_s <= by_s else None
        if row is not None:
            return row
    rows = [row for row in reader.rows_about(job.job) if reader.times_s[row] <= by_s]
    if not rows:
        raise InputError(f"{reader.folder}: no decision about job {job.job} in this store; see --decision N")
    return rows[-1]


def state_of(job: JobSeen) -> str:
    """Return the last known state of a job."""
    if job.state:
        return job.state
    return RUNNING if job.attempts and job.attempts[-1].end_s == math.inf else QUEUED


def _attempt(reader: StoreReader, seen: AttemptSeen) -> dict[str, Any]:
    row = _row_of_start(reader, seen)
    others = reader.timeline.sharing_with(seen)
    run_s = (
        seen.run_s if math.isfinite(seen.run_s) else min(seen.end_s, reader.timeline.last_s) - seen.start_s
    )
    return {
        "number": seen.number,
        "start_s": seen.start_s,
        "started": when(reader, seen.start_s),
        "waited_s": _finite(seen.start_s - seen.job.waited_since_s(math.nextafter(seen.start_s, -math.inf))),
        "end_s": _finite(seen.end_s),
        "ended": when(reader, seen.end_s),
        "where": places(seen.nodes, seen.gpus),
        "share_milli": seen.share_milli,
        "sm_clock_frac": seen.sm_clock_frac,
        "state": seen.state or RUNNING,
        "reason": seen.reason,
        "run_s": run_s,
        "seen_until": when(reader, reader.timeline.last_s),
        "speed_frac": _finite(seen.speed_frac),
        "predicted_speed_frac": _finite(seen.predicted_speed_frac),
        "energy_kwh": _finite(seen.energy_j / J_PER_KWH),
        "predicted_energy_kwh": _finite(seen.predicted_energy_j / J_PER_KWH),
        "shared_with": sorted({other.job.job for other in others}),
        "left": reader.timeline.left_free(seen),
        "why": None if row is None else decision(reader, row),
        "made_room": _made_room(reader, seen),
        "stopped_by": _stopped_by(reader, seen),
    }


def _row_of_start(reader: StoreReader, seen: AttemptSeen) -> int | None:
    for row in reader.rows_about(seen.job.job):
        cells = reader.cells(row)
        if cells["kind"] == "start" and cells["job"] == seen.job.job and cells["time_s"] == seen.start_s:
            return row
    return None


def _made_room(reader: StoreReader, seen: AttemptSeen) -> list[dict[str, Any]]:
    """Return the decisions that preempted other jobs for this attempt, oldest first.

    The result has two kinds of decisions. Some preempted a job in favour of this job while this job waited.
    The others preempted a job on GPUs of the attempt at the instant at which the attempt started.
    """
    job, since_s = seen.job.job, seen.job.waited_since_s(math.nextafter(seen.start_s, -math.inf))
    rows = [
        row
        for row in reader.rows_about(job)
        if reader.cells(row)["turn"] == job != reader.cells(row)["job"]
        and not reader.cells(row)["time_s"] < since_s
    ]
    for other in reader.timeline.before_on(seen):
        rows += [
            row
            for row in reader.rows_about(other.job.job)
            if reader.cells(row)["time_s"] == seen.start_s and reader.cells(row)["job"] == other.job.job
        ]
    found = []
    for row in sorted(set(rows)):
        cells = reader.cells(row)
        if cells["kind"] == "preempt" and cells["time_s"] <= seen.start_s:
            record = reader.record(row)
            found.append(
                {
                    "row": row,
                    "number": record.number,
                    "time_s": record.now_s,
                    "when": when(reader, record.now_s),
                    "job": cells["job"],
                    "did": decision_text.done(record),
                    "by": decision_text.decided_by(record),
                }
            )
    return found


def _stopped_by(reader: StoreReader, seen: AttemptSeen) -> dict[str, Any] | None:
    """Return the decision that preempted an attempt, and the jobs that got its GPUs; None: not preempted."""
    found, first = None, _row_of_start(reader, seen)
    for row in reader.rows_about(seen.job.job):
        cells = reader.cells(row)
        inside = seen.start_s <= cells["time_s"] <= seen.end_s and (first is None or row > first)
        if cells["kind"] == "preempt" and cells["job"] == seen.job.job and inside:
            found = row
    if found is None:
        return None
    taken = reader.timeline.started_on(seen, reader.cells(found)["time_s"])
    return decision(reader, found) | {"gained": [other.job.job for other in taken]}


def places(nodes: Iterable[str], gpus: Iterable[int]) -> str:
    """Return a text that lists GPUs by node: `n1[0,1] n0[0-3]`."""
    by_node: dict[str, list[int]] = {}
    for node, gpu in zip(nodes, gpus, strict=True):
        by_node.setdefault(node, []).append(gpu)
    return " ".join(f"{node}[{','.join(map(str, sorted(mine)))}]" for node, mine in by_node.items())


def moment(reader: StoreReader, at_s: float) -> dict[str, Any]:
    """Return the state of the cluster at a time: waiting jobs, GPUs in use, and the last decision.

    Waiting jobs are in the order of `queue_at`.
    """
    waiting = queue_at(reader, at_s)
    row = decision_at(reader, at_s)
    return {
        "time_s": at_s,
        "when": when(reader, at_s),
        "num_waiting": len(waiting),
        "num_in_order": sum(bool(partition) for _, partition in waiting),
        "waiting": [
            {
                "job": job.job,
                "partition": partition,
                "name": job.name,
                "user": job.user,
                "num_gpus": job.num_gpus,
                "waited_s": at_s - job.waited_since_s(at_s),
                "predicted_s": _finite(job.predicted_s),
            }
            for job, partition in waiting[:MOST_QUEUED]
        ],
        "num_running": reader.timeline.num_running_at(at_s),
        "met": _levels(reader, at_s),
        "outside": _outside(reader, at_s),
        "decision": None if row is None else decision(reader, row),
    }


def _outside(reader: StoreReader, at_s: float) -> str:
    """Return a text that a time is before the first or after the last record; "": it is between them."""
    timeline = reader.timeline
    if not math.isfinite(timeline.first_s):
        return "no records yet"
    if at_s < timeline.first_s:
        return f"the first record here is later, of {when(reader, timeline.first_s)}"
    if at_s > timeline.last_s:
        return f"the last record here is earlier, of {when(reader, timeline.last_s)}"
    return ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
