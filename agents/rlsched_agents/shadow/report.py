"""Creates the report of a shadow: agreement with Slurm, activity, and estimated change of waits, by day."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched.broker.queries.as_history import history_of
from rlsched.decide.policies.policy import Policy
from rlsched.engine.shadow.notes import Began, StartComparison, Watched, read_notes
from rlsched.errors import InputError
from rlsched_agents.evaluate.pairs import MIN_BLOCKS
from rlsched_agents.shadow.agreement import Agreement, Guarding, agreement, day_of, days_of, guarding
from rlsched_agents.shadow.replay import Change, replay
from rlsched_agents.whatif.site import NO_CLAIMS


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a local day.

    Attributes:
        day: The day, for example `2026-11-25`.
        agreement: Comparison of Slurm's starts with the starts that the policy wanted.
        guarding: Activity of the shadow.
        change: Estimated change in waits; None if unknown.
    """

    day: str
    agreement: Agreement
    guarding: Guarding
    change: Change | None


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The complete report, which `--json` prints.

    Attributes:
        cluster: Slurm's ClusterName.
        partitions: The partitions of the shadow.
        policy: The policy in shadow mode.
        days: The days, in order.
        agreement: Comparison over all days.
        guarding: Activity over all days.
        rule: Name of the site's rule, as identified; "": unknown.
        line: Description of the rule.
        change: Estimated change in waits over all days; None if no results are reported.
        refused: Reason why no change is reported; "" if it is reported.
    """

    cluster: str
    partitions: list[str]
    policy: str
    days: list[Day]
    agreement: Agreement
    guarding: Guarding
    rule: str = ""
    line: str = ""
    change: Change | None = None
    refused: str = ""


def report(directory: Path, day: str | None = None) -> ShadowReport:
    """Create the report of a shadow, which can still be running.

    Args:
        directory: The `--dir` of the shadow.
        day: The only day to report, for example `2026-11-25`; None: all days.

    Raises:
        InputError: the directory has no shadow, or the shadow has no data (for this day).
    """
    notes = read_notes(directory)
    began = next((note for note in reversed(notes) if isinstance(note, Began)), None)
    days = days_of(notes)
    if began is None or not days:
        raise InputError(f"{directory}: this shadow has no data yet; it records once a minute, so try later")
    if day is not None and day not in days:
        raise InputError(f"--day {day}: expected a day with data in {directory}, {days[0]} to {days[-1]}")
    shown = days if day is None else [day]
    starts = [note for note in notes if isinstance(note, StartComparison) and day_of(note.at_s) in shown]
    watched = [note for note in notes if isinstance(note, Watched) and day_of(note.until_s) in shown]
    found = ShadowReport(
        cluster=began.cluster,
        partitions=began.partitions,
        policy=began.policy,
        days=[],
        agreement=agreement(starts),
        guarding=guarding(watched),
    )
    changes: dict[str, Change] = {}
    try:
        told = replay(history_of(directory), Policy.parse(began.toml, name=began.policy))
    except InputError as error:
        found = msgspec.structs.replace(found, refused=str(error))
    else:
        changes = told.by_day
        whole = told.all if day is None else changes.get(day)
        found = msgspec.structs.replace(
            found, rule=told.rule, line=told.line, change=whole, refused=_refused(whole, told.rule)
        )
    by_day = [
        Day(
            day=one,
            agreement=agreement([note for note in starts if day_of(note.at_s) == one]),
            guarding=guarding([note for note in watched if day_of(note.until_s) == one]),
            change=changes.get(one),
        )
        for one in shown
    ]
    return msgspec.structs.replace(found, days=by_day)


def _refused(change: Change | None, rule: str) -> str:
    if change is None:
        return "no job of that day has started under both the site's rule and the policy"
    if change.grade == NO_CLAIMS:
        return (
            f"no rule explains what Slurm did; the nearest, {rule}, is off by "
            f"{change.fidelity.by_job_frac:.0%} of the waits, job by job: the site may use priorities or "
            "limits that are not in the history"
        )
    if change.ratio is not None and change.ratio.low is None:
        return f"an interval needs {MIN_BLOCKS} days or hours with jobs; there are fewer: try again later"
    return ""
