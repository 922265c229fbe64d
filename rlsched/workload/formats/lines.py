"""Reads publishers' files line by line, so that a damaged line does not affect the other lines."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlsched.errors import TraceError
from rlsched.workload.formats.account import MalformedError

UNKNOWN = frozenset(("", "nan", "NaN", "NaT", "None", "none", "null", "NULL", "Unknown", "N/A", "n/a"))
"""Spellings of an unknown number or time. For unknown text, see `TextRow.text`."""

_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

Rows = Iterator[tuple[int, "TextRow | MalformedError"]]


class TextRow(NamedTuple):
    """The fields of one line, by column name.

    Attributes:
        line: Line number in the file, from 1.
        cells: The fields.
        places: Column name -> index of its field in `cells`.
    """

    line: int
    cells: Sequence[str]
    places: Mapping[str, int]

    def text(self, column: str, *missing: str) -> str:
        """Return the field unchanged; "" if it is blank, or if the file has no such column.

        Args:
            column: Name of the column.
            *missing: Words that count as blank in this column. The words in `UNKNOWN` count as text, because
                a user can have the name `None`, `nan` or `NA`.
        """
        at = self.places.get(column)
        if at is None:
            return ""
        value = self.cells[at]
        word = value.strip()
        return "" if not word or word in missing else value

    def word(self, column: str, *missing: str) -> str:
        """Return the field without surrounding spaces; use it for IDs, states, types and times."""
        return self.text(column, *missing).strip()

    def fields(self) -> bytes:
        """Return all fields as bytes, ordered by column name: equal rows have equal bytes."""
        return "\0".join([self.cells[self.places[name]] for name in sorted(self.places)]).encode()

    def number(self, column: str) -> float | None:
        """Return the field as a number, 0 or more; None if the field is in `UNKNOWN`.

        Raises:
            MalformedError: The field is neither a number of 0 or more nor in `UNKNOWN`.
        """
        text = self.word(column)
        if text in UNKNOWN:
            return None
        if not _NUMBER.fullmatch(text) or not 0 <= float(text) < float("inf"):
            raise MalformedError(column, f"{column!r}: expected a number, 0 or more, got {text[:40]!r}")
        return float(text)

    def need(self, column: str) -> float:
        """Return the field as a number, 0 or more.

        Raises:
            MalformedError: The field is unknown, or not a number of 0 or more.
        """
        value = self.number(column)
        if value is None:
            raise MalformedError(column, f"{column!r}: expected a number, 0 or more, got a blank")
        return value


def read_lines(path: Path) -> Iterator[tuple[int, str | MalformedError]]:
    """Yield line number and text, without line end, of each line that is not blank.

    Gzip is detected by the content of the file. A line that is not UTF-8 gives a `MalformedError`.

    Raises:
        TraceError: the file cannot be read, or its gzip is damaged.
    """
    number = 0
    try:
        with _opened(path) as file:
            for raw in file:
                number += 1
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    yield (
                        number,
                        MalformedError("other bytes than UTF-8", "expected UTF-8 text, got other bytes"),
                    )
                    continue
                if text.strip():
                    yield number, text
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TraceError(
            f"{path}: expected a gzip file, and it is damaged after line {number}: {error}"
        ) from error
    except OSError as error:
        raise TraceError(f"{path}: cannot read this file: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return a file as one text, for formats that are not read by lines; invalid UTF-8 becomes U+FFFD.

    Raises:
        TraceError: the file cannot be read, or its gzip is damaged.
    """
    try:
        with _opened(path) as file:
            return file.read().decode("utf-8-sig", errors="replace")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TraceError(f"{path}: expected a gzip file, and it is damaged: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot read this file: {error.strerror or error}") from error


def read_csv(
    path: Path,
    required: Sequence[str] = (),
    *,
    columns: Sequence[str] = (),
    delimiter: str = ",",
    quotes: bool = True,
    joined: Callable[[Sequence[str], list[str]], list[str] | None] | None = None,
) -> Rows:
    """Yield line number and row of each row of a table; a malformed row is a `MalformedError`.

    A file can contain several tables, each with its own header, as `cat jan.txt feb.txt` produces.

    Args:
        path: The file.
        required: Columns that the header must have.
        columns: Names of the columns if the file has no header line; empty: the file has a header line.
        delimiter: Separator of the fields.
        quotes: Whether fields can be in double quotes. False: a quote is an ordinary character.
        joined: Function that repairs a line with too many fields, in which a text contains the delimiter. It
            takes the header and the fields, and returns the correct fields, or None if they cannot be
            determined. Without this function, such a line is malformed.

    Raises:
        TraceError: the file cannot be read, is empty, or its header lacks a column.
    """
    lines = read_lines(path)
    header = list(columns) or _header(path, lines, required, delimiter)
    index = {name: header.index(name) for name in header}
    for number, text in lines:
        if isinstance(text, MalformedError):
            yield number, text
            continue
        cells = _split(text, delimiter, quotes)
        if isinstance(cells, MalformedError):
            yield number, cells
            continue
        if required and required[0] in text and set(required).issubset(names := _names(cells)):
            header, index = names, {name: names.index(name) for name in names}
            continue
        if joined is not None and len(cells) > len(header):
            cells = joined(header, cells) or cells
        if len(cells) != len(header):
            expected = f"expected {len(header)} fields, got {len(cells)}"
            yield number, MalformedError("number of fields", expected)
            continue
        yield number, TextRow(number, cells, index)


def _header(
    path: Path, lines: Iterator[tuple[int, str | MalformedError]], required: Sequence[str], delimiter: str
) -> list[str]:
    _, first = next(lines, (0, ""))
    if not first:
        raise TraceError(f"{path}: expected a header line, got an empty file")
    names = first if isinstance(first, MalformedError) else _split(first, delimiter)
    if isinstance(names, MalformedError):
        raise TraceError(f"{path}: line 1: expected a header: {names}")
    names = _names(names)
    missing = [name for name in required if name not in names]
    if missing:
        raise TraceError(
            f"{path}: line 1: expected a header with {', '.join(missing)}, got {str(first)[:200]!r}"
        )
    return names


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip() for cell in cells]


def _split(text: str, delimiter: str, quotes: bool = True) -> list[str] | MalformedError:
    if not quotes or '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        return MalformedError("quotes", f"expected a line of CSV, got a line with an error: {error}")


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")
