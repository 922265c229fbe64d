"""How Slurm's starts of a day compare with what the policy wanted, and what the shadow did that day."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rlsched.engine.shadow.notes import Compared, Note, Watched

SAME_INSTANT_S: Final = 10.0
"""Slurm starts a job a while after it could: its main scheduler and backfill look now and then."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm's starts beside the policy's, over some time.

    Attributes:
        starts: Slurm's starts that are compared.
        same_instant: Of them, those that the policy wanted within `SAME_INSTANT_S` before.
        earlier: Those that it had wanted for longer: it would have started them earlier.
        not_then: Those that it would not have started then.
        same_nodes: Of those that it wanted, those on the nodes that it wanted.
        gpus_known: Of those that it wanted, those of which Slurm has said the GPUs: not of very short jobs.
        same_gpus: Of these, those on the very GPUs.
        instants: Instants of a partition at which Slurm started something ...
        next: ... and of them, those at which the job that the policy puts first was among it.
        earlier_median_s: Of those that it had wanted earlier, by how much; None of none.
    """

    starts: int
    same_instant: int
    earlier: int
    not_then: int
    same_nodes: int
    gpus_known: int
    same_gpus: int
    instants: int
    next: int
    earlier_median_s: float | None


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that was outside the range of the policy's training.

    Attributes:
        feature: Its name.
        minutes: Notes (one a minute) in which it was.
        most_frac: The largest share of looks in which it was.
        value: What it was when it was last.
        low: Least value in training ...
        high: ... and largest.
    """

    feature: str
    minutes: int
    most_frac: float
    value: float
    low: float
    high: float


class Guarding(msgspec.Struct, frozen=True, kw_only=True):
    """What the shadow did over some time.

    Attributes:
        watched_s: How long it looked.
        looks: Looks at Slurm.
        failed: Those that Slurm did not answer.
        ran: How often each of Slurm's commands ran.
        decisions: Decisions that the policy was asked for.
        guard: Of them, those of the guard, by why.
        drift_minutes: Minutes in which the guard decided because of drift.
        outside: Features outside their ranges, the most frequent first.
        note: Why none are watched, "" where they are.
        left: Jobs that are not compared, by why.
        standing: Jobs that the policy wanted to start at the end, and Slurm had not.
    """

    watched_s: float
    looks: int
    failed: int
    ran: dict[str, int]
    decisions: int
    guard: dict[str, int]
    drift_minutes: int
    outside: list[Outside]
    note: str
    left: dict[str, int]
    standing: int


def day_of(at_s: float) -> str:
    """The local day of a time, such as `2026-11-25`."""
    return time.strftime("%F", time.localtime(at_s))


def days_of(notes: Sequence[Note]) -> list[str]:
    """The days on which there is something, in order."""
    return sorted(
        {day_of(note.at_s) for note in notes if isinstance(note, Compared)}
        | {day_of(note.until_s) for note in notes if isinstance(note, Watched)}
    )


def agreement(starts: Sequence[Compared]) -> Agreement:
    """Add up starts."""
    wanted = [one for one in starts if _kind(one) != "not_then"]
    early_s = [one.at_s - one.wanted_since_s for one in wanted if one.wanted_since_s is not None]
    early_s = [by_s for by_s in early_s if by_s > SAME_INSTANT_S]
    kinds = Counter(map(_kind, starts))
    return Agreement(
        starts=len(starts),
        same_instant=kinds["same_instant"],
        earlier=kinds["earlier"],
        not_then=kinds["not_then"],
        same_nodes=sum(sorted(one.nodes) == sorted(one.wanted_nodes) for one in wanted),
        gpus_known=sum(bool(one.gpus) for one in wanted),
        same_gpus=sum(
            _places(one.nodes, one.gpus) == _places(one.wanted_nodes, one.wanted_gpus) for one in wanted
        ),
        instants=len({(one.partition, one.at_s) for one in starts}),
        next=len({(one.partition, one.at_s) for one in wanted if one.before == 0}),
        earlier_median_s=float(np.median(early_s)) if early_s else None,
    )


def _kind(one: Compared) -> str:
    if one.wanted_since_s is None:
        return "not_then"
    if one.wanted_until_s is not None and one.at_s - one.wanted_until_s > SAME_INSTANT_S:
        return "not_then"
    return "earlier" if one.at_s - one.wanted_since_s > SAME_INSTANT_S else "same_instant"


def _places(nodes: Sequence[str], gpus: Sequence[int]) -> set[tuple[str, int]]:
    return set(zip(nodes, gpus, strict=True)) if gpus else set()


def guarding(watched: Sequence[Watched]) -> Guarding:
    """Add up what was noted."""
    ran, guard, left = Counter[str](), Counter[str](), Counter[str]()
    seen: dict[str, Outside] = {}
    for note in watched:
        ran.update(note.ran)
        guard.update(note.guard)
        left.update(note.left)
        for one in note.outside:
            known = seen.get(one.column)
            seen[one.column] = Outside(
                feature=one.column,
                minutes=1 + (known.minutes if known is not None else 0),
                most_frac=max(one.share_frac, known.most_frac if known is not None else 0.0),
                value=one.value,
                low=one.low,
                high=one.high,
            )
    return Guarding(
        watched_s=sum(note.until_s - note.since_s for note in watched),
        looks=sum(note.looks for note in watched),
        failed=sum(note.failed for note in watched),
        ran=dict(sorted(ran.items())),
        decisions=sum(note.asked for note in watched),
        guard=dict(guard.most_common()),
        drift_minutes=sum(note.drifts for note in watched),
        outside=sorted(seen.values(), key=lambda one: -one.minutes),
        note=watched[-1].note if watched else "",
        left=dict(left.most_common()),
        standing=len(watched[-1].standing) if watched else 0,
    )
