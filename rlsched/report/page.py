"""Makes the page of `rlsched trace describe --html`, from the statistics of `workload.describe`."""

from __future__ import annotations

from pathlib import Path

from rlsched import __version__
from rlsched.report import operation, workload
from rlsched.report.figures import Canvas
from rlsched.report.markup import Section, cards, document, paragraph, write
from rlsched.report.phrases import number
from rlsched.terminal.show import in_words
from rlsched.workload.characterise.parts import Report

SECTIONS = (
    operation.cluster,
    workload.sizes,
    workload.durations,
    workload.users,
    workload.arrivals,
    operation.utilisation,
    operation.over_time,
    operation.waiting,
    workload.repeats,
    operation.failures,
    operation.predictions,
)
"""Functions that make the sections, in the order of the page."""


def sections(report: Report) -> list[Section]:
    """Return all sections, with plots, for a report of `workload.describe.describe`."""
    canvas = Canvas()
    return [make(report, canvas) for make in SECTIONS]


def page(report: Report, made: list[Section]) -> str:
    """Return the page as HTML; equal reports give equal pages.

    Args:
        report: Report of `workload.describe.describe`.
        made: Result of `sections`.
    """
    title = f"Workload of {report['trace']}"
    subtitle = (
        f"{number(report['jobs'])} jobs, {in_words(report['span_s'])} from the first submission to the last."
    )
    foot = paragraph(
        f"Made by rlsched {__version__}, rlsched trace describe --html. The same numbers for "
        "machines: --json."
    )
    return document(title, subtitle, _lead(report, made), made, foot)


def write_page(report: Report, path: Path) -> list[Section]:
    """Write the page atomically, and return its sections.

    Raises:
        InputError: the file cannot be written.
    """
    made = sections(report)
    write(page(report, made), path)
    return made


def _lead(report: Report, made: list[Section]) -> str:
    cluster = report.get("cluster")
    load = cluster and cluster["load_frac"]
    facts = [
        ("jobs", number(report["jobs"])),
        ("span", in_words(report["span_s"])),
        ("GPU-hours", number(report["gpu_time_h"])),
        ("GPUs in demand, mean", number(report["gpus_in_demand_mean"])),
        ("median run time", in_words(report["durations"]["p50_s"])),
        ("users", number(report["users"])),
        ("virtual clusters", number(report["vcs"])),
    ]
    if load is not None:
        facts.append(("offered load", f"{load:.3f}"))
    lacking = "".join(f'<li><a href="#{one.key}">{one.title}</a></li>' for one in made if one.lacks)
    note = (
        f'<div class="lacking"><p>Without data in this trace:</p><ul>{lacking}</ul></div>' if lacking else ""
    )
    return cards(facts) + note
