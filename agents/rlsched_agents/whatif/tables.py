"""Formats the results of `rlsched whatif` as tables of text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlsched.terminal.show import in_words, percent
from rlsched_agents.whatif.groups import JobGroup
from rlsched_agents.whatif.results import Under, WhatIf

GRADES_NOTE = (
    "Errors are relative to the mean wait. A: mean within 5 %, by size, partition and day within 15 %, job "
    "by job within 30 %; B: 10, 20, 40 %; C: 15, 25, 50 %; D: larger errors, no results are reported."
)
PAIRED_NOTE = (
    "Relative to a replay under the site's rule, on the same jobs; below 1 is better. In brackets: the 95 % "
    "interval over days of submissions, if there are ten days. Of twenty rows without a difference, one "
    "appears to have one."
)


class Table(NamedTuple):
    """A table: title, columns, rows, and a note below the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def fidelity(found: WhatIf) -> Table:
    """Return the table that shows how well each rule explains the recorded waits."""
    columns = (
        "rule",
        "grade",
        "wait recorded",
        "replayed",
        "mean",
        "by size",
        "by partition",
        "by day",
        "by job",
    )
    rows = [
        (
            one.rule,
            one.grade,
            in_words(one.shown.recorded_mean_s),
            in_words(one.shown.replayed_mean_s),
            f"{100 * one.shown.mean_frac:+.1f} %",
            percent(one.shown.by_size_frac),
            percent(one.shown.by_partition_frac),
            percent(one.shown.by_day_frac),
            percent(one.shown.by_job_frac),
        )
        for one in found.fits
    ]
    how = "in one go" if found.fits[0].stretches is None else "day by day from the recorded state"
    return Table(f"How well each rule explains the record, replayed {how}", columns, rows, GRADES_NOTE)


def recorded_and_replayed(found: WhatIf, kind: str) -> Table:
    """Return the table of recorded waits and waits under the best rule, by size or partition."""
    best = found.fits[0]
    pairs = best.by_size if kind == "size" else best.by_partition
    rows = [
        (name, f"{one.jobs:,}", in_words(one.recorded_s), in_words(one.replayed_s))
        for name, one in pairs.items()
    ]
    head = "GPUs" if kind == "size" else kind
    return Table(
        f"{best.rule} against the record by {kind}", (head, "jobs", "wait recorded", "replayed"), rows
    )


def policies(found: WhatIf) -> Table:
    """Return the table of each policy's results on the last fifth."""
    assert found.site is not None
    has_energy = found.site.energy_kwh is not None
    columns = ("policy", "mean wait", "mean JCT", "wait, ratio", "waits less", "longer")
    rows = [_policy(one, has_energy) for one in (found.site, *found.policies)]
    return Table(
        f"Last fifth of the history, {found.days} days",
        (*columns, "energy, ratio") if has_energy else columns,
        rows,
        PAIRED_NOTE,
    )


def _policy(one: Under, has_energy: bool) -> tuple[str, ...]:
    name = f"{one.policy} (with true run times: a bound)" if one.oracle else one.policy
    if one.against is None:
        return (f"{name} (the site's rule)", in_words(one.wait_s), in_words(one.jct_s), "1", "", "") + (
            ("1",) if has_energy else ()
        )
    energy = one.against.energy_ratio
    return (
        name,
        in_words(one.wait_s),
        in_words(one.jct_s),
        str(one.ratio or "-"),
        percent(one.against.wins_frac),
        percent(one.against.losses_frac),
    ) + ((str(energy or "-"),) if has_energy else ())


def gains(one: Under, kind: str) -> Table:
    """Return the table of groups that wait less or longer under a policy."""
    head = "GPUs" if kind == "size" else kind
    rows = [_gain(group) for group in one.groups if group.kind == kind]
    return Table(f"{one.policy} by {kind}", (head, "jobs", "site's rule", one.policy, "ratio", "waits"), rows)


def _gain(group: JobGroup) -> tuple[str, ...]:
    return (
        group.name,
        f"{group.jobs:,}",
        in_words(group.site_wait_s),
        in_words(group.wait_s),
        str(group.ratio or "-"),
        group.waits or "not shown",
    )


def spare(found: WhatIf) -> Table:
    """Return the table of nodes and GPUs that are not needed."""
    rows = [
        (
            name,
            f"{one.asleep:.1f} of {one.nodes:,}",
            f"{one.wake_ups_a_day:.1f}",
            f"{one.node_minutes_short_a_day:,.0f}",
            _fewer(found) if name == found.best else "-",
        )
        for name, one in found.sleep.items()
    ]
    columns = (
        "policy",
        "nodes asleep, mean",
        "wake-ups a day",
        "node-minutes waited a day",
        "GPUs not needed",
    )
    note = "GPUs not needed: on the other GPUs, jobs wait no longer than under the site's rule on all GPUs."
    return Table("Nodes that could sleep, GPUs that need not be bought", columns, rows, note)


def _fewer(found: WhatIf) -> str:
    return "-" if found.fewer is None else f"{found.fewer.gpus_spared:,} of {found.gpus:,}"


def shown(found: WhatIf) -> Under | None:
    """Return the policy whose gains and losses are shown: the best one, if there is one.

    Otherwise, return the first policy that does not know the true run times; if all know them, the first.
    """
    choices = [one for one in found.policies if not one.oracle] or found.policies
    return next((one for one in choices if one.policy == found.best), choices[0] if choices else None)
