"""Reads and writes raw columns of files: CSV, CSV.gz and Parquet. Checks only the file itself."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from rlsched.errors import InputError, TraceError
from rlsched.installing import install_command
from rlsched.workload.plain_csv import split_plain

if TYPE_CHECKING:
    from types import ModuleType

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_EXACT_INTEGERS = 2.0**53


class RawTable(NamedTuple):
    """Columns as in a file.

    Attributes:
        columns: By header: text cells (CSV; `PlainCells` if it is plain) or typed values with None for null
            (Parquet).
        rows: Number of each row in the file: its line (CSV, the header is line 1), or 1, 2, ... (Parquet).
    """

    columns: dict[str, Any]
    rows: Sequence[int]


def split_suffix(path: Path) -> tuple[str, str]:
    """Return the file's name without its suffix, and the suffix: one of `SUFFIXES`.

    Raises:
        TraceError: the suffix is another one.
    """
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return path.name[: -len(suffix)], suffix
    raise TraceError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")


def read_table(path: Path) -> RawTable:
    """Read a file by its suffix.

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
    """Write a file by its suffix, atomically; equal columns give equal bytes.

    Raises:
        TraceError: the file cannot be written.
        InputError: the file is Parquet and pyarrow is missing.
    """
    _, suffix = split_suffix(path)
    data = _parquet_bytes(columns) if suffix == ".parquet" else _csv_text(columns).encode("utf-8")
    if suffix == ".csv.gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
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
    """Return the columns by their headers."""
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise TraceError(f"{path}: column {twice!r} occurs twice in the header; keep one of them")
    return dict(zip(header, cells, strict=True))


def _read_parquet(path: Path) -> RawTable:
    parquet = _pyarrow_parquet()
    data = io.BytesIO(path.read_bytes())
    try:
        table = parquet.read_table(data)
    except Exception as error:  # pyarrow raises many kinds for a file that is not Parquet
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
    """Text of each cell: whole numbers as integers, others so that they read back exactly, nan blank."""
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
