"""Formats numbers and sentences that several sections use."""

from __future__ import annotations

from rlsched.report.markup import Section, paragraph
from rlsched.workload.characterise.parts import Report, is_missing


def number(value: float | None) -> str:
    """Format a number: without decimals if it is an integer or at least 100, else with 3 significant digits.

    None becomes `-`.
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def or_nan(value: float | None, otherwise: float = float("nan")) -> float:
    """Return a value for a plot; None becomes `otherwise`."""
    return otherwise if value is None else value


def section(key: str, title: str, *parts: str) -> Section:
    """Return a section with data."""
    return Section(key, title, parts)


def within(key: str, title: str, found: Report, *more: str) -> Section | None:
    """Return a section that names the missing data and columns, if the statistics `found` lack data.

    None: no data are missing.
    """
    if not is_missing(found):
        return None
    columns = found["missing"]
    need = f" That would need the column {' and '.join(columns)}." if columns else ""
    return Section(key, title, (paragraph(found["say"] + need, "missing"), *more), found["say"] + need)


def left_out(found: Report, what: str) -> str:
    """Return a sentence about the jobs that a section leaves out; "" if the section has all jobs."""
    if not found["left_out"]:
        return ""
    return f" {number(found['left_out'])} jobs without a known {what} are left out."


def days_note(clock: Report) -> str:
    """Return a sentence: hours and weekdays follow the wall clock, or are counted from the trace's start."""
    if clock["origin"] is not None:
        return f"Hours and weekdays are by the clock on which the trace's second 0 is {clock['origin']}."
    return (
        "Hours and days are relative to the trace's origin, whose wall-clock time is not in the trace: "
        "hour 00 of day 1 begins at its second 0, and day 8 counts as day 1 again. --origin 2024-04-01T08:00 "
        "or the column origin gives the true hours and days."
    )
