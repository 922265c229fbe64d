"""Tables of public CSV files: header, rows, and columns by name."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from rlsched.energy.text_files import read_text
from rlsched.errors import InputError, nearest

_BLANK: Final = frozenset(("", "-", "n/a", "n/e", "na", "nan", "none", "null"))
_SEPARATORS: Final = ",;\t"
_ISO = re.compile(r"\s*\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Table:
    """A CSV file: `rows` contains (line number, cells); each row has as many cells as `columns`."""

    path: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a CSV file, plain or compressed with gzip. Commas, semicolons or tabs separate the cells.

        Raises:
            InputError: the file cannot be read, has no rows, or a row and the header differ in length.
        """
        text = read_text(path)
        head = text.partition("\n")[0]
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=max(_SEPARATORS, key=lambda one: head.count(one))
        )
        try:
            columns = tuple(name.strip() for name in next(reader, []))
            rows = tuple((reader.line_num, cells) for cells in reader if any(cells))
        except csv.Error as error:
            raise InputError(f"{path}: line {reader.line_num}: expected CSV: {error}") from None
        for line, cells in rows:
            if len(cells) != len(columns):
                raise InputError(
                    f"{path}: line {line}: expected {len(columns)} cells, as in the header, got {len(cells)}"
                )
        if not rows:
            raise InputError(
                f"{path}: expected a header and rows, got {'a header' if columns else 'nothing'}"
            )
        return cls(str(path), columns, rows)

    @property
    def listed(self) -> str:
        """The columns as text, for messages."""
        return ", ".join(repr(column) for column in self.columns)

    def find(self, pattern: str) -> list[str]:
        """Return the columns whose names match a regular expression, ignoring case."""
        return [name for name in self.columns if re.search(pattern, name, re.IGNORECASE)]

    def named(self, name: str) -> str:
        """Return the column that `--column` names.

        Raises:
            InputError: there is no such column.
        """
        same = [one for one in self.columns if one.casefold() == name.casefold()]
        if name in self.columns or len(same) == 1:
            return name if name in self.columns else same[0]
        near = nearest(name, self.columns)
        raise InputError(f"{self.path}: --column {name!r}: {near}the columns are {self.listed}")

    def cells(self, column: str) -> Iterator[tuple[int, str]]:
        """Yield the line number and the cell of this column for each row."""
        k = self.columns.index(column)
        return ((line, cells[k].strip()) for line, cells in self.rows)

    def is_numeric(self, column: str) -> bool:
        """Return whether all cells of a column are numbers or blank, and at least one is a number."""
        given = [cell for _, cell in self.cells(column) if not is_blank(cell)]
        return bool(given) and all(_is_number(cell) for cell in given)

    def is_time(self, column: str) -> bool:
        """Return whether the first cell of a column is a time in ISO 8601."""
        _, cell = next(self.cells(column))
        return _ISO.match(cell) is not None and is_iso(cell)


def is_blank(cell: str) -> bool:
    """Return whether a cell stands for an unknown value."""
    return cell.casefold() in _BLANK


def is_iso(cell: str) -> bool:
    """Return whether a cell is a time in ISO 8601."""
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        return False
    return True


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
