"""Cells of a table: where they come from, and those that hold several entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from rlsched.errors import TraceError

SEPARATOR = ";"
"""Between the entries of `depends_on` and of `fail_after_s`."""


def entries(cell: str) -> list[str]:
    """The entries of a cell that holds several; none of a blank one."""
    return [entry.strip() for entry in cell.split(SEPARATOR)] if cell else []


class Where(NamedTuple):
    """Where the cells come from: the file (or what stands for it) and the row number of each.

    Attributes:
        source: File or name, for messages.
        rows: Number of each row in that file; None: 1, 2, 3, ...
    """

    source: str
    rows: Sequence[int] | None = None

    def row(self, position: int) -> int:
        """Row number in the file of the cell at this position."""
        return self.rows[position] if self.rows is not None else position + 1

    def refuse(self, position: int, column: str, expected: str, got: object) -> NoReturn:
        """Raise the error about one cell."""
        shown = repr(str(got))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise TraceError(
            f"{self.source}: row {self.row(position)}, column {column!r}: expected {expected}, got {shown}"
        )
