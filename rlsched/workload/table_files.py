"""Reads and writes tables: CSV, CSV.gz and Parquet. Checks the format of the file, not the values.

Most traces are plain CSV files (without quotes; see `split_plain`). A plain file is split as bytes, which
takes a tenth of the time and memory of the `csv` module. The `csv` module reads all other CSV files.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError, TraceError
from rlsched.files.atomic import replace_file
from rlsched.installing import install_command

if TYPE_CHECKING:
    from types import ModuleType

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_EXACT_INTEGERS = 2.0**53


class RawTable(NamedTuple):
    """Columns as in a file.

    Attributes:
        columns: Header -> cells. From CSV: texts (`PlainCells` if the file is plain). From Parquet: typed
            values, None for null.
        rows: Row number of each row, for messages. CSV: line number, where the header is line 1. Parquet: 1,
            2, ...
    """

    columns: dict[str, Any]
    rows: Sequence[int]


def split_suffix(path: Path) -> tuple[str, str]:
    """Return the file's name without its suffix, and the suffix: one of `SUFFIXES`.

    Raises:
        TraceError: The suffix is not one of `SUFFIXES`.
    """
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return path.name[: -len(suffix)], suffix
    raise TraceError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")


def read_table(path: Path) -> RawTable:
    """Read a file in the format that its suffix names.

    Raises:
        TraceError: the file is missing, damaged, or not a table.
        InputError: the file is Parquet and pyarrow is missing.
    """
    _, suffix = split_suffix(path)
    try:
        return _read_parquet(path) if suffix == ".parquet" else _read_csv(path, suffix)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TraceError(f"{path}: expected a gzip file, and it is damaged: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot read this trace: {error.strerror or error}") from error


def write_table(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write a file atomically, in the format that its suffix names. Equal columns give equal bytes.

    Raises:
        TraceError: the file cannot be written.
        InputError: the file is Parquet and pyarrow is missing.
    """
    _, suffix = split_suffix(path)
    data = _parquet_bytes(columns) if suffix == ".parquet" else _csv_text(columns).encode("utf-8")
    if suffix == ".csv.gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    try:
        replace_file(path, data)
    except OSError as error:
        raise TraceError(f"{path}: cannot write this trace: {error.strerror or error}") from error


def _read_csv(path: Path, suffix: str) -> RawTable:
    raw = gzip.decompress(path.read_bytes()) if suffix == ".csv.gz" else path.read_bytes()
    plain = split_plain(raw)
    if plain is not None:
        return RawTable(_by_header(path, plain.header, plain.columns), range(2, plain.rows + 2))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TraceError(f"{path}: row {line}: expected UTF-8 text, got other bytes") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        records, rows = [], []
        for record in reader:
            if not record:
                continue
            if len(record) != len(header):
                raise TraceError(
                    f"{path}: row {reader.line_num}: expected {len(header)} values as "
                    f"in the header, got {len(record)}"
                )
            records.append(record)
            rows.append(reader.line_num)
    except csv.Error as error:
        raise TraceError(f"{path}: row {reader.line_num}: not valid CSV: {error}") from error
    if not header:
        raise TraceError(f"{path}: expected a header line, got an empty file")
    cells = list(zip(*records, strict=True)) if records else [()] * len(header)
    return RawTable(_by_header(path, header, cells), rows)


def _by_header(path: Path, header: list[str], cells: Sequence[Any]) -> dict[str, Any]:
    """Return a dict: header -> cells. Raise a `TraceError` if a header occurs twice."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise TraceError(f"{path}: column {twice!r} occurs twice in the header; keep one of them")
    return dict(zip(header, cells, strict=True))


def _read_parquet(path: Path) -> RawTable:
    parquet = _pyarrow_parquet()
    data = io.BytesIO(path.read_bytes())
    try:
        table = parquet.read_table(data)
    except Exception as error:  # pyarrow raises many types of exception for a file that is not Parquet
        raise TraceError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TraceError(f"{path}: column {twice!r} occurs twice; keep one of them")
    columns = {name: table.column(name).to_pylist() for name in names}
    return RawTable(columns, list(range(1, table.num_rows + 1)))


def _csv_text(columns: Mapping[str, NDArray[Any]]) -> str:
    out = io.StringIO(newline="")
    cells = [_cells(column) for column in columns.values()]
    # The csv module does not quote a single carriage return, and then reads it as the end of a line.
    returns = any("\r" in cell for column in [columns, *cells] for cell in column)
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
    writer.writerow(columns)
    writer.writerows(zip(*cells, strict=True))
    return out.getvalue()


def _cells(column: NDArray[Any]) -> list[str]:
    """Return each cell as text: whole numbers without a point, other numbers with all digits, nan as ""."""
    if column.dtype.kind != "f":
        return [str(value) for value in column.tolist()]
    return [
        ""
        if value != value
        else str(int(value))
        if value.is_integer() and abs(value) < _EXACT_INTEGERS
        else repr(value)
        for value in column.tolist()
    ]


def _parquet_bytes(columns: Mapping[str, NDArray[Any]]) -> bytes:
    parquet = _pyarrow_parquet()
    import pyarrow

    table = pyarrow.table(
        {
            name: pyarrow.array(
                column.tolist() if column.dtype.kind == "U" else column, from_pandas=column.dtype.kind == "f"
            )
            for name, column in columns.items()
        }
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


def _pyarrow_parquet() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"Parquet needs pyarrow; run: {install_command('parquet')}") from error
    module: ModuleType = pyarrow.parquet
    return module


LONGEST: Final = 1000
"""Maximum number of bytes in a cell; a file with a longer cell is not plain."""

_COMMA, _LF, _POINT, _ZERO = (ord(sign) for sign in ",\n.0")
_NOT_PLAIN: Final = (b'"', b"\r", b"\0", b"\n\n")
_NUMBER_SIGNS: Final = frozenset(b"0123456789.+-eE")
"""Characters that a number can contain. A text of these characters is a number only if `float` accepts it."""
_EXACT_DIGITS: Final = 15
"""Maximum number of digits of an integer that float64 always stores exactly."""
_POWERS: Final = 10.0 ** np.arange(_EXACT_DIGITS + 1)
_SPLIT_BYTES, _DECODE_BYTES = 1 << 18, 1 << 20
"""Bytes processed in one step; they fit the second-level cache."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32] | NDArray[np.int64]


class PlainTable(NamedTuple):
    """A plain CSV file, split into cells.

    Attributes:
        header: Cells of the first line.
        columns: Cells of the lines after the header, by column.
        rows: Number of lines after the header.
    """

    header: list[str]
    columns: list[PlainCells]
    rows: int


def split_plain(data: bytes) -> PlainTable | None:
    """Split a plain CSV file into cells; None: the file is not plain, so the `csv` module must read it.

    A plain file is UTF-8. Lines end in LF, are not blank, and all have the same number of cells. The file
    contains no quote, no CR, no NUL, and no cell of more than `LONGEST` bytes.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if data[:1] in (b"", b"\n") or any(sign in data for sign in _NOT_PLAIN) or not _is_utf8(data):
        return None
    header = io.BytesIO(data).readline().decode().rstrip("\n").split(",")
    raw = np.frombuffer(b"".join((data, b"\n", bytes(LONGEST))), np.uint8)
    unended = not data.endswith(b"\n")
    lines, wide = data.count(b"\n") + unended, len(header)
    if data.count(b",") != lines * (wide - 1):
        return None
    ends = _ends_of_cells(raw[: len(data) + unended], lines * wide)
    if ends is None or not (raw[ends[wide - 1 :: wide]] == _LF).all():
        return None
    before = ends[wide - 1 : -1]  # the line feed of the header, then the end of every cell but the last
    columns = [PlainCells(raw, before[at::wide] + 1, ends[wide + at :: wide]) for at in range(wide)]
    return PlainTable(header, columns, lines - 1)


class PlainCells(Sequence[str]):
    """J cells of a column of a plain file. An index returns a cell as text; `texts` and `numbers` return all.

    Args:
        raw: (N,) bytes of the file, followed by at least `LONGEST` bytes of padding.
        begins: (J,) start of each cell in `raw`.
        ends: (J,) end of each cell in `raw`.
    """

    def __init__(self, raw: Bytes, begins: Places, ends: Places) -> None:
        self._raw, self._begins, self._ends = raw, begins, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> PlainCells: ...
    def __getitem__(self, which: int | slice) -> str | PlainCells:
        if isinstance(which, slice):
            return PlainCells(self._raw, self._begins[which], self._ends[which])
        return self._raw[self._begins[which] : self._ends[which]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts().tolist())

    def texts(self) -> NDArray[np.str_]:
        """Return the (J,) cells as texts; the width of the array's type is the longest cell."""
        blocks = [_as_text(block) for block in self._blocks()]
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.str_)

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the (J,) cells as floats, nan if blank; None if a cell is not a decimal number."""
        found = np.empty(len(self))
        for block in self._blocks():
            values, plain = _as_numbers(block)
            if not plain.all():
                others = block.strings[~plain].tolist()
                if not _NUMBER_SIGNS.issuperset(b"".join(others)):
                    return None
                try:
                    values[~plain] = [float(cell) for cell in others]
                except ValueError:
                    return None
            found[block.first : block.first + len(values)] = values
        return found

    def _blocks(self) -> Iterator[_Block]:
        """Yield the cells in blocks that fit the cache; cells of a block are padded to equal length."""
        lengths = self._ends - self._begins
        longest = max(int(lengths.max(initial=0)), 1)
        rows = max(_DECODE_BYTES // (8 * longest), 1)
        for first in range(0, len(self), rows):
            length = lengths[first : first + rows]
            wide = max(int(length.max()), 1)
            # A view of the file as overlapping strings of `wide` bytes, one starting at every byte.
            from_each = np.ndarray((len(self._raw) - wide + 1,), f"V{wide}", self._raw, strides=(1,))
            signs = from_each[self._begins[first : first + rows]].view(np.uint8).reshape(-1, wide)
            yield _Block(first, signs * (np.arange(wide) < length[:, None]), length)


class _Block(NamedTuple):
    """Consecutive cells of a column."""

    first: int  # index of the first cell in the column
    signs: Bytes  # (n, width) bytes, 0 after each cell's end
    length: Places  # (n,) bytes of each cell

    @property
    def strings(self) -> NDArray[np.bytes_]:
        """Return the (n,) cells as byte strings."""
        return self.signs.view(f"S{self.signs.shape[1]}").ravel()


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _ends_of_cells(raw: Bytes, cells: int) -> Places | None:
    """Return the (cells,) positions of commas and line feeds; None: a cell is longer than `LONGEST`."""
    ends: Places = np.empty(cells, np.int32)
    if len(raw) > np.iinfo(np.int32).max:
        ends = np.empty(cells, np.int64)
    done = 0
    for first in range(0, len(raw), _SPLIT_BYTES):
        part = raw[first : first + _SPLIT_BYTES]
        found = np.flatnonzero((part == _COMMA) | (part == _LF)) + first
        last = ends[done - 1] if done else -1
        if np.diff(found, prepend=last, append=first + len(part)).max() > LONGEST + 1:
            return None
        ends[done : done + len(found)] = found
        done += len(found)
    return ends


def _as_text(block: _Block) -> NDArray[np.str_]:
    if (block.signs < 128).all():
        return block.signs.astype(np.uint32).view(f"U{block.signs.shape[1]}").ravel()
    return np.char.decode(block.strings, "utf-8")


def _as_numbers(block: _Block) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the cells of a block as floats, nan if blank, and a mask of the floats that are exact.

    A value is exact if the cell has at most `_EXACT_DIGITS` digits, at most one point, and no other
    characters. The value is then an integer below 2^53 divided by a power of ten. Both are exact in float64,
    so the quotient is the float64 nearest to the written number.
    """
    rows, wide = block.signs.shape
    values = np.zeros(rows)
    digits, points, decimals = (np.zeros(rows, np.int16) for _ in range(3))
    for at in range(wide):
        digit = block.signs[:, at] - np.uint8(_ZERO)
        is_digit = digit < 10
        with np.errstate(over="ignore"):  # numbers of hundreds of digits are not handled here
            values = np.where(is_digit, values * 10.0 + digit, values)
        digits += is_digit
        decimals += is_digit & (points > 0)
        points += block.signs[:, at] == _POINT
    blank = block.length == 0
    plain = (digits + points == block.length) & (points <= 1) & (digits >= 1) & (digits <= _EXACT_DIGITS)
    values /= _POWERS[np.minimum(decimals, _EXACT_DIGITS)]
    values[blank] = np.nan
    return values, plain | blank
