"""Cells of a table: their position in a file, for error messages, and cells that contain several entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from rlsched.errors import TraceError

SEPARATOR = ";"
"""Separator between the entries of a cell of `depends_on` or `fail_after_s`."""


def entries(cell: str) -> list[str]:
    """Split a cell at `SEPARATOR` into its entries; a blank cell has no entries."""
    return [entry.strip() for entry in cell.split(SEPARATOR)] if cell else []


class Where(NamedTuple):
    """Position of the cells of a column in a file, for error messages.

    Attributes:
        source: Path of the file, or the name of a table that is not in a file.
        rows: Row number in the file of each cell; None: the cells are in rows 1, 2, 3, ...
    """

    source: str
    rows: Sequence[int] | None = None

    def row(self, position: int) -> int:
        """Return the row number in the file of the cell with index `position` in its column."""
        return self.rows[position] if self.rows is not None else position + 1

    def refuse(self, position: int, column: str, expected: str, got: object) -> NoReturn:
        """Raise a `TraceError` for an invalid cell: its row, its column, the expected and the found value.

        `position` is the index of the cell in its column, `expected` describes valid values, and `got` is the
        invalid value.
        """
        shown = repr(str(got))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise TraceError(
            f"{self.source}: row {self.row(position)}, column {column!r}: expected {expected}, got {shown}"
        )
