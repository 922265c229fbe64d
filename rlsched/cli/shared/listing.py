"""Lists of rows for `queue`, `nodes` and `history`: sorting, selected columns, repeated output."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rlsched.cli.shared.options import Command
from rlsched.cli.shared.slurms_options import COLUMNS, LETTERS
from rlsched.errors import InputError, nearest
from rlsched.terminal.visible import visible

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.text import Text

    from rlsched.client.client import Client

    Row = TypeVar("Row", bound=Struct)

_LETTER: Final = r"%[.\d]*([A-Za-z])"
TIMES: Final = ("submit_s", "start_s", "end_s", "last_seen_s")
"""Columns with times in Unix seconds, which lists show as local times."""
LIST_CONTEXT: Final = {"help_option_names": ["--help"]}
"""Context settings of verbs in which `-h` omits the heading, as in `squeue` and `sinfo`."""
LONG: Final = click.option("-l", "--long", "_long", is_flag=True, hidden=True)
"""The option `-l` of `squeue` and `sinfo`. It has no effect, because lists show all columns."""
_SORT: Final = "Sort by this column, which is a field name of --json; -COLUMN sorts in descending order."
_OPTIONS: Final = (
    click.option(
        "-o",
        "--format",
        "columns",
        metavar="COLUMN,...",
        help="Show only these columns, separated by commas; columns are field names of --json.",
    ),
    click.option(
        "-i",
        "--watch",
        "--iterate",
        metavar="SECONDS",
        type=click.FloatRange(min=0.2, max=86_400.0),
        help="Refresh the list at this interval, seconds, until you press q or Ctrl-C.",
    ),
)


def listing(
    command: Command, sort: Sequence[str] = ("-S", "--sort"), heading: Sequence[str] = ("-h", "--noheader")
) -> Command:
    """Add options that sort a list, select its columns, and repeat it; `listed` uses the values.

    The verb has to use `LIST_CONTEXT`, unless `heading` leaves out `-h`.

    Args:
        command: The verb.
        sort: Names of the option that sorts.
        heading: Names of the option that omits the heading.
    """
    option: Callable[[Command], Command]
    own = (
        click.option(*sort, metavar="COLUMN", help=_SORT),
        *_OPTIONS,
        click.option(*heading, "no_heading", is_flag=True, help="Omit the heading, for scripts."),
    )
    for option in reversed(own):
        command = option(command)
    return command


def listed(
    verb: str,
    reach: Callable[[], Client],
    fetch: Callable[[Client], list[Row]],
    lines: Callable[[list[Row], int | None], list[Text]],
    *,
    columns: str | None,
    as_json: bool,
    watch: float | None,
    no_heading: bool = False,
) -> list[Row]:
    """Show a list as lines that fit the terminal, in selected columns, or as JSON; return the last rows.

    Args:
        verb: Name of the verb, for the title of a live screen.
        reach: Function that creates a client.
        fetch: Function that requests the rows from the broker.
        lines: Function that returns the rows as lines, cut to a width; None: lines are not cut.
        columns: Names of the columns to show, separated by commas; None: show the result of `lines`.
        as_json: Whether to print JSON.
        watch: Interval at which the list is repeated, seconds; a terminal shows a live screen. None: the list
            is shown once.
        no_heading: Whether the line of column names is left out; an empty list then prints no line.
    """
    from rlsched.cli.shared.screen.terminal import is_screen
    from rlsched.terminal.show import print_json, print_lines

    def render(rows: list[Row], width: int | None) -> list[Text]:
        found = lines(rows, width) if columns is None else in_columns(rows, columns)
        return found[1:] if no_heading else found

    with reach() as client:
        while True:
            rows = fetch(client)
            if as_json:
                import msgspec

                print_json(msgspec.to_builtins(rows))
            elif watch is not None and is_screen():
                break
            else:
                print_lines(partial(render, rows))
            if watch is None:
                return rows
            time.sleep(watch)
    from rlsched.cli.shared.screen.live import live
    from rlsched.cli.shared.screen.page import ListPage

    live(ListPage(f"rlsched {verb}, every {watch:g} s", fetch, render), reach, watch)
    return rows


def sorted_by(rows: list[Row], column: str | None, kind: type[Row]) -> list[Row]:
    """Return the rows sorted by a column; `-COLUMN` sorts in descending order. Rows without a value are last.

    Raises:
        InputError: there is no such column.
    """
    if column is None:
        return rows
    name = _known(column.lstrip("-"), kind.__struct_fields__)
    valued = [row for row in rows if getattr(row, name) is not None]
    try:
        valued.sort(key=lambda row: getattr(row, name), reverse=column.startswith("-"))
    except TypeError:
        raise InputError(
            f"--sort: expected a column of numbers or words, got {name!r}, a column of lists"
        ) from None
    return valued + [row for row in rows if getattr(row, name) is None]


def in_columns(rows: Sequence[Row], columns: str) -> list[Text]:
    """Return a line of column names and a line per row, in aligned columns.

    An empty cell is written as `-`, so that `awk` counts its column.
    """
    from rich.text import Text

    names = columns.split(",")
    cells = [names, *([_text(name, getattr(row, name)) for name in names] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
    return [
        Text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for row in cells
    ]


def check_columns(columns: str | None, sort: str | None, kind: type[Row]) -> None:
    """Check the column names of `--format` and `--sort`, before a request to the broker.

    Raises:
        InputError: there is no such column.
    """
    if columns is not None and "%" in columns:
        fields = kind.__struct_fields__
        named = [name for one in re.findall(_LETTER, columns) if (name := LETTERS.get(one)) in fields]
        like = ",".join(dict.fromkeys(named)) or ",".join(fields[:3])
        raise InputError(f"--format {columns!r}: expected names of columns, such as -o {like}")
    for name in [
        *(columns.split(",") if columns is not None else ()),
        *((sort.lstrip("-"),) if sort else ()),
    ]:
        _known(name, kind.__struct_fields__)


def _known(name: str, fields: Sequence[str]) -> str:
    if name not in fields:
        here = COLUMNS.get(name.lower(), "")
        hint = f"it is {here} here; " if here.split(",")[0] in fields else nearest(name, fields)
        raise InputError(f"column {name!r}: {hint}expected one of {', '.join(fields)}")
    return name


def _text(name: str, value: Any) -> str:
    if value in (None, "", []):
        return "-"
    if name in TIMES:
        return time.strftime("%FT%T", time.localtime(value))
    if name == "forecast":
        soonest_s = (value.start_s or value.end_s)[1]
        return "-" if soonest_s is None else time.strftime("%FT%T", time.localtime(soonest_s))
    if name == "usage":
        from rlsched.broker.base.usage_words import in_words

        return "; ".join(in_words(value)) or "-"
    if isinstance(value, list):
        return visible(
            ";".join(",".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
        )
    return visible(f"{value:.3f}" if isinstance(value, float) else str(value))
