"""Writes the page of `rlsched shadow --html`."""

from __future__ import annotations

from pathlib import Path

from rlsched import __version__
from rlsched.report.markup import cards, document, paragraph, table, write
from rlsched.report.phrases import number, section
from rlsched_agents.shadow import tables
from rlsched_agents.shadow.report import ShadowReport


def write_page(report: ShadowReport, path: Path) -> None:
    """Write the HTML page of the report atomically.

    Raises:
        InputError: the file cannot be written.
    """
    names = ("agreement", "guard", "features", "changes", "left")
    made = [
        section(
            name,
            one.title,
            table(one.title, one.columns, one.rows) + (paragraph(one.note, "note") if one.note else ""),
        )
        for name, one in zip(names, tables.all_of(report), strict=True)
        if one.rows
    ]
    facts = [
        ("days", number(len(report.days))),
        ("starts compared", number(report.agreement.starts)),
        ("decisions", number(report.guarding.decisions)),
        ("fidelity", report.change.grade if report.change is not None else "not known"),
    ]
    lead = cards(facts) + (paragraph(f"Nothing is claimed: {report.refused}") if report.refused else "")
    foot = paragraph(f"Made by rlsched {__version__}, rlsched shadow --html. For machines: --json.")
    title = f"Shadow of {report.cluster}: {report.policy} on {', '.join(report.partitions)}"
    write(
        document(title, "Simulated decisions of a policy; nothing was written to Slurm.", lead, made, foot),
        path,
    )
