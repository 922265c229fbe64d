"""Writes the page of `rlsched whatif --html`."""

from __future__ import annotations

from pathlib import Path

from rlsched import __version__
from rlsched.report.figures import COLOURS, Canvas, Series
from rlsched.report.markup import Section, cards, document, figure, paragraph, table, write
from rlsched.report.phrases import number, section
from rlsched_agents.whatif import tables
from rlsched_agents.whatif.results import WhatIf


def write_page(found: WhatIf, path: Path) -> None:
    """Write the HTML page of the results atomically.

    Raises:
        InputError: the file cannot be written.
    """
    canvas = Canvas()
    made = [_fidelity(found, canvas)]
    if found.site is not None:
        made += [_policies(found, canvas), *_gains(found), _spare(found)]
    facts = [
        ("jobs", number(found.jobs)),
        ("nodes", number(found.nodes)),
        ("GPUs", number(found.gpus)),
        ("GPUs busy at once, at most", number(found.most_busy_gpus)),
        ("run times predicted by", found.prediction or "-"),
        ("the site's rule", found.fits[0].rule if not found.refused else "not known"),
        ("grade", found.grade),
    ]
    foot = paragraph(f"Made by rlsched {__version__}, rlsched whatif --html. For machines: --json.")
    lead = cards(facts) + paragraph(found.verdict)
    write(document(f"Other policies on {found.history}", f"On {found.cluster}.", lead, made, foot), path)


def _table(one: tables.Table, *, folded: bool = False) -> str:
    note = paragraph(one.note, "note") if one.note else ""
    return table(one.title, one.columns, one.rows, folded=folded) + note


def _fidelity(found: WhatIf, canvas: Canvas) -> Section:
    best = found.fits[0]
    sizes = list(best.by_size)
    plot = canvas.time_bars(
        sizes,
        [
            Series("recorded", [best.by_size[size].recorded_s for size in sizes]),
            Series(f"replayed by {best.rule}", [best.by_size[size].replayed_s for size in sizes]),
        ],
        "Mean wait by number of GPUs.",
        "GPUs",
    )
    lines = "".join(paragraph(f"{one.rule}: {one.line}.", "note") for one in found.fits)
    return section(
        "fidelity",
        "The site's rule",
        _table(tables.fidelity(found)),
        figure(plot),
        _table(tables.recorded_and_replayed(found, "size"), folded=True),
        _table(tables.recorded_and_replayed(found, "partition"), folded=True),
        lines,
    )


def _policies(found: WhatIf, canvas: Canvas) -> Section:
    assert found.site is not None
    drawn = found.policies[: len(COLOURS)]
    sizes = [group.name for group in drawn[0].groups if group.kind == "size"]
    series = [
        Series(
            found.site.policy,
            [group.site_wait_s for group in drawn[0].groups if group.kind == "size"],
        )
    ] + [
        Series(one.policy, [waits.get(size, 0.0) for size in sizes])
        for one in drawn[: len(COLOURS) - 1]
        for waits in ({group.name: group.wait_s for group in one.groups if group.kind == "size"},)
    ]
    plot = canvas.time_bars(sizes, series, "Mean wait in the last fifth by number of GPUs.", "GPUs")
    return section("policies", "Policies on the last fifth", _table(tables.policies(found)), figure(plot))


def _gains(found: WhatIf) -> list[Section]:
    parts = []
    for one in found.policies:
        folded = one.policy != found.best
        for kind in ("size", "partition", "user"):
            rows = tables.gains(one, kind)
            if rows.rows:
                parts.append(_table(rows, folded=folded))
    return [section("gains", "Who gains and who loses", *parts, paragraph(tables.PAIRED_NOTE, "note"))]


def _spare(found: WhatIf) -> Section:
    return section("spare", "Nodes and GPUs to spare", _table(tables.spare(found)))
