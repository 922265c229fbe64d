"""Cells of a table: the position of each cell in its file, and cells that contain several entries."""

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
    """The position of cells: the file (or a name for it) and the row number of each cell.

    Attributes:
        source: File or name, for messages.
        rows: Row number of each cell in that file; None: 1, 2, 3, ...
    """

    source: str
    rows: Sequence[int] | None = None

    def row(self, position: int) -> int:
        """Return the row number in the file of the cell at this position."""
        return self.rows[position] if self.rows is not None else position + 1

    def refuse(self, position: int, column: str, expected: str, got: object) -> NoReturn:
        """Raise a `TraceError` that names the cell at this position and the values expected and found."""
        shown = repr(str(got))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise TraceError(
            f"{self.source}: row {self.row(position)}, column {column!r}: expected {expected}, got {shown}"
        )
