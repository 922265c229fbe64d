"""Prints reports: tables for users, JSON for programs. Formats durations and other figures as text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

MOST_SKEWED = 5
"""Maximum number of nodes with skewed clocks that get a line each."""
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def console() -> Console:
    """Return the console for tables. Without a terminal, the width is 160 characters."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def print_lines(lines: Callable[[int | None], list[Text]]) -> None:
    """Call `lines` with the width of the terminal (None: no terminal), and print the returned lines."""
    out = console()
    for line in lines(out.width if out.is_terminal else None):
        out.print(line, soft_wrap=True)


def print_text(text: str) -> None:
    """Print a text. On a terminal, long lines are wrapped between words."""
    from rich.text import Text

    out = console()
    out.print(Text(text), soft_wrap=not out.is_terminal)


def print_sentences(lines: Iterable[str], indent: int = 2) -> None:
    """Print lines; on a terminal, long lines are wrapped and indented by `indent` characters."""
    out = console()
    for line in lines:
        click.echo(folded(line, out.width, indent) if out.is_terminal else line)


def folded(line: str, width: int, indent: int) -> str:
    """Wrap a line between words to `width` characters. Further lines are indented by `indent` more spaces."""
    from textwrap import wrap

    begin = line[: len(line) - len(line.lstrip())]
    below = begin + " " * indent
    parts = wrap(
        line[len(begin) :],
        width,
        initial_indent=begin,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(parts)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", *, whole: bool = False
) -> None:
    """Print a table, with `note` below. The first column is left-aligned, and the others are right-aligned.

    `whole`: whether only cells of the first column are wrapped, so that figures stay on one line.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, caption=note or None, caption_justify="left"
    )
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=whole and position > 0)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_json(report: object) -> None:
    """Print a report as JSON. Numbers that are not finite become null."""
    click.echo(json.dumps(finite(report), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """Return a value, in which None replaces every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_words(seconds: float | None) -> str:
    """Format a duration for users: `45 s`, `12.5 min`, `3.2 h`, `6.1 d`; `-` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def clock_skew(skew_s: float) -> str:
    """Format a clock skew in seconds, positive if the node is ahead: `75 s ahead of`, `6.5 s behind`."""
    size_s = abs(skew_s)
    return f"{size_s:,.{1 if size_s < 10.0 else 0}f} s {'ahead of' if skew_s > 0 else 'behind'}"


def skewed_nodes(skews_s: Mapping[str, float], nodes: int) -> list[str]:
    """Return a line for each of the first `MOST_SKEWED` nodes with skewed clocks, and one for all others.

    Args:
        skews_s: Clock skew by node name, seconds; positive if the node is ahead of the broker.
        nodes: Total number of skewed nodes.
    """
    lines = [
        f"node {name}: its clock is {clock_skew(skew_s)} the broker's; run NTP on both (`timedatectl`)"
        for name, skew_s in islice(skews_s.items(), MOST_SKEWED)
    ]
    others = nodes - len(lines)
    if others > 0:
        what = "the clock of 1 other node is" if others == 1 else f"the clocks of {others:,} other nodes are"
        lines.append(f"{what} off as well: `rlsched nodes` lists them")
    return lines


def count(number: int, what: str) -> str:
    """Format a number and its noun, in the plural if needed: `1 GPU`, `2 GPUs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def brief(seconds: float) -> str:
    """Format a duration in at most two units, for narrow columns: `45s`, `12m`, `3h05m`, `2d04h`."""
    whole = max(int(seconds), 0)
    if whole < 3600:
        return f"{whole}s" if whole < 60 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02d}h"


def percent(fraction: float | None) -> str:
    """Format a fraction as per cent; `-` if unknown."""
    return "-" if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f} %"


def size(count: int) -> str:
    """Format a number of bytes: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000.0:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000.0
    return f"{size:,.1f} GB"
