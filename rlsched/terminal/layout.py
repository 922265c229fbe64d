"""Fits text to a terminal: tables, cells in columns, and the division of lines among parts of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.text import Text

from rlsched.terminal.visible import visible

GAP: Final = 2
_LEAST: Final = 8
"""Minimum width, characters, to which a column is cut. Only the last column can become narrower."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Heading.
        max_width: Maximum width, characters; wider cells are cut if the table has a maximum width.
        is_right: Whether to align right, for numbers.
        shrinks: Whether the column can be cut if a line is too long. The widest of these columns is cut
            first. The last column can always be cut.
    """

    title: str
    max_width: int = 40
    is_right: bool = False
    shrinks: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int | None, gap: int = GAP
) -> list[Text]:
    """Return a line of titles and a line per row, of at most `width` characters; None: no maximum."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max([len(column.title), *(row[at].cell_len for row in cells)]) for at, column in enumerate(columns)
    ]
    if width is not None:
        _fit(widths, columns, width, gap)
    titles = [Text(column.title, style="dim") for column in columns]
    return [_line(row, widths, columns, gap) for row in (titles, *cells)]


def _fit(widths: list[int], columns: Sequence[Column], width: int, gap: int) -> None:
    last = len(widths) - 1
    for at, column in enumerate(columns[:last]):
        widths[at] = min(widths[at], column.max_width)
    too_much = sum(widths) + gap * last - width
    shrinking = [at for at, column in enumerate(columns) if column.shrinks or at == last]
    while too_much > 0:
        at = max(shrinking, key=lambda at: (widths[at] > _LEAST) * widths[at])
        if widths[at] <= _LEAST:
            break
        widths[at] -= 1
        too_much -= 1
    widths[last] = max(widths[last] - max(too_much, 0), 0)


def _line(row: Sequence[Text], widths: Sequence[int], columns: Sequence[Column], gap: int) -> Text:
    line = Text()
    for at, (cell, width, column) in enumerate(zip(row, widths, columns, strict=True)):
        is_last = at == len(columns) - 1
        cell.truncate(width, overflow="ellipsis")
        if column.is_right:
            cell.pad_left(width - cell.cell_len)
        elif not is_last:
            cell.pad_right(width - cell.cell_len)
        line.append_text(cell)
        if not is_last:
            line.append(" " * gap)
    line.rstrip()
    return line


def side_by_side(cells: Sequence[Text], width: int) -> list[Text]:
    """Arrange cells of equal width, as many per line as fit."""
    if not cells:
        return []
    wide = min(max(cell.cell_len for cell in cells), width)
    a_line = max((width + GAP) // (wide + GAP), 1)
    lines = []
    for first in range(0, len(cells), a_line):
        row = cells[first : first + a_line]
        line = Text()
        for at, cell in enumerate(row):
            cell.truncate(wide, overflow="ellipsis")
            line.append_text(cell)
            if at < len(row) - 1:
                line.append(" " * (wide - cell.cell_len + GAP))
        lines.append(line)
    return lines


def joined(parts: Iterable[str | Text], width: int, between: str = "  ") -> Text:
    """Join parts to a line of at most `width` characters.

    The first part that does not fit, and all parts after it, are left out. Part 1 is never left out.
    """
    line = Text()
    for part in map(_text, parts):
        used = len(between) if line else 0
        if line and line.cell_len + used + part.cell_len > width:
            break
        line.append(between if line else "")
        line.append_text(part)
    return line


def shares(wanted: Sequence[int], lines: int) -> list[int]:
    """Divide `lines` among parts of a page, and return the number of lines of each part.

    `wanted`: maximum number of lines of each part. If there are too few lines for all, they are divided as
    equally as possible.
    """
    given = [0] * len(wanted)
    for _ in range(max(lines, 0)):
        hungry = [at for at, want in enumerate(wanted) if given[at] < want]
        if not hungry:
            break
        given[min(hungry, key=lambda at: given[at])] += 1
    return given


def window(count: int, room: int, at: int | None) -> tuple[int, int]:
    """Return the range of rows to show if only `room` of `count` rows fit: first index, and index after it.

    The range contains row `at`. If `at` is None, the range begins at row 0.
    """
    if count <= room:
        return 0, count
    first = 0 if at is None else min(max(at - room // 2, 0), count - room)
    return first, first + room


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(visible(cell))
