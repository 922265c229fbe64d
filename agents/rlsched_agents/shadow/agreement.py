"""Compares the starts of jobs in Slurm with the starts that a policy in shadow mode wanted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rlsched.engine.shadow.notes import Note, StartComparison, Watched

SAME_INSTANT_S: Final = 10.0
"""Maximum time between starts that count as simultaneous, seconds: Slurm schedules only at intervals."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of Slurm's starts with the policy's decisions, over a period.

    Attributes:
        starts: Number of starts in Slurm that were compared.
        same_instant: Number of starts that the policy wanted too, at most `SAME_INSTANT_S` earlier.
        earlier: Number of starts that the policy wanted too, more than `SAME_INSTANT_S` earlier.
        not_then: Number of starts that the policy did not want at that time.
        same_nodes: Number of wanted starts for which Slurm chose the same nodes as the policy.
        gpus_known: Number of wanted starts whose GPUs Slurm reported.
        same_gpus: Number of the `gpus_known` starts for which Slurm chose the same GPUs as the policy.
        instants: Number of instants at which Slurm started jobs, counted per partition.
        next: Number of the `instants` at which Slurm started the job that the policy would start next.
        earlier_median_s: Median time from the policy's decision to the start in Slurm, for the `earlier`
            starts, seconds; None if there are none.
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


class FeatureOutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that was outside its range in the policy's training.

    Attributes:
        feature: Name of the feature.
        minutes: Number of minutes with values outside the range.
        most_frac: Largest fraction of the polls in a minute that had values outside the range.
        value: Last value outside the range.
        low: Minimum in training.
        high: Maximum in training.
    """

    feature: str
    minutes: int
    most_frac: float
    value: float
    low: float
    high: float


class Guarding(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of the shadow over a period.

    A shadow is a policy that decides in parallel to Slurm, without effect.

    Attributes:
        watched_s: Time for which Slurm was observed, seconds.
        looks: Number of polls of Slurm.
        failed: Number of polls without an answer from Slurm.
        ran: Number of calls of each Slurm command.
        decisions: Number of decisions of the policy, and of the guard that replaces it if necessary.
        guard: Number of decisions of the guard, by reason.
        drift_minutes: Number of minutes in which the guard detected drift (features outside their ranges).
        outside: Features that were outside their ranges, most frequent first.
        note: Reason why features are not monitored; "" if they are.
        left: Number of jobs that are not compared, by reason.
        standing: Number of jobs that the policy wanted to start, and Slurm had not started by the end of the
            period.
    """

    watched_s: float
    looks: int
    failed: int
    ran: dict[str, int]
    decisions: int
    guard: dict[str, int]
    drift_minutes: int
    outside: list[FeatureOutOfRange]
    note: str
    left: dict[str, int]
    standing: int


def day_of(at_s: float) -> str:
    """Return the local date of a time in Unix seconds, for example `2026-11-25`."""
    return time.strftime("%F", time.localtime(at_s))


def days_of(notes: Sequence[Note]) -> list[str]:
    """Return the local dates for which there are notes, in order."""
    return sorted(
        {day_of(note.at_s) for note in notes if isinstance(note, StartComparison)}
        | {day_of(note.until_s) for note in notes if isinstance(note, Watched)}
    )


def agreement(starts: Sequence[StartComparison]) -> Agreement:
    """Return how many of Slurm's starts agree with the starts that the policy wanted."""
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


def _kind(one: StartComparison) -> str:
    if one.wanted_since_s is None:
        return "not_then"
    if one.wanted_until_s is not None and one.at_s - one.wanted_until_s > SAME_INSTANT_S:
        return "not_then"
    return "earlier" if one.at_s - one.wanted_since_s > SAME_INSTANT_S else "same_instant"


def _places(nodes: Sequence[str], gpus: Sequence[int]) -> set[tuple[str, int]]:
    return set(zip(nodes, gpus, strict=True)) if gpus else set()


def guarding(watched: Sequence[Watched]) -> Guarding:
    """Add up the counts that a shadow has stored in its notes `watched`, one note per minute."""
    ran, guard, left = Counter[str](), Counter[str](), Counter[str]()
    seen: dict[str, FeatureOutOfRange] = {}
    for note in watched:
        ran.update(note.ran)
        guard.update(note.guard)
        left.update(note.left)
        for one in note.outside:
            known = seen.get(one.column)
            seen[one.column] = FeatureOutOfRange(
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
