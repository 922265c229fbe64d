"""How reports look: rich tables for people, JSON for machines, durations in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def console() -> Console:
    """Where tables are printed; full width when it is no terminal, so that pipes do not cut columns."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
    """Print a table: the first column left, all others right; `note` stands below."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, caption=note or None, caption_justify="left"
    )
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_json(report: object) -> None:
    """Print a report as JSON; a number that is not finite becomes null."""
    click.echo(json.dumps(finite(report), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """The same report with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_words(seconds: float | None) -> str:
    """A duration for people: `45 s`, `12.5 min`, `3.2 h`, `6.1 d`; `-` where unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def percent(fraction: float | None) -> str:
    """A share for people; `-` where unknown."""
    return "-" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f} %"
