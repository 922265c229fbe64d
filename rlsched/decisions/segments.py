"""Reads and writes one table of a store, as a series of files (segments).

A segment, such as `decisions-000001.arrow`, is an Arrow IPC stream to which batches of rows are appended.
Large batches are compressed. A segment can be read while it is written. Readers ignore an incomplete batch at
its end, which a crash or a full disk can leave.

A writer begins a new segment at its start, and when the current segment has reached its maximum size, number
of rows or age. The oldest segments are removed if the table is too large, or if all their rows are too old.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlsched.decisions.schema import ADDED
from rlsched.decisions.small_batches import read_run

SEGMENT_BYTES: Final = 16 << 20
SEGMENT_ROWS: Final = 24_000
"""A segment with `SEGMENT_BYTES` bytes, or `SEGMENT_ROWS` rows after its first batch, gets no more batches.
"""
SUFFIX: Final = ".arrow"
COMPRESSED_BYTES: Final = 4096
"""Minimum size of a batch that is compressed, bytes.

Compression reduces a batch with one decision only from 2.4 to 2.0 KiB, but reading it takes 365 us of CPU
time instead of 8 us, and writing it 300 us instead of 40 us.
"""
SMALL_ROWS: Final = 128
"""Batches with fewer rows are merged when they are read."""
PER_KEPT: Final = 16
"""A table at its age or size limit has at least this number of segments.

Only whole segments are removed, so a removal takes at most 1 / `PER_KEPT` of the table.
"""


def segment_files(folder: Path, table: str) -> list[Path]:
    """Return the segments of a table, oldest first; an empty list if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    begin = f"{table}-"
    return [folder / name for name in sorted(names) if name.startswith(begin) and name.endswith(SUFFIX)]


def times_of(path: Path) -> tuple[float, float] | None:
    """Return the times of a segment's first and last row, seconds; None if the segment has no rows.

    Only the first and the last batch are decoded.
    """
    import pyarrow as pa

    first = last = schema = None
    try:
        with pa.memory_map(str(path)) as file:
            while True:
                message = pa.ipc.read_message(file)
                if schema is None:
                    schema = pa.ipc.read_schema(message)
                    continue
                first, last = first or message, message
    except (EOFError, pa.ArrowException, OSError):
        pass
    if first is None or last is None:
        return None
    try:
        ends = [pa.ipc.read_record_batch(one, schema).column("time_s") for one in (first, last)]
        return float(ends[0][0].as_py()), float(ends[1][-1].as_py())
    except (pa.ArrowException, OSError, KeyError, IndexError):
        return None


class Beginning(NamedTuple):
    """The first batch of a segment.

    Attributes:
        number: Number of the first decision; -1 in other tables than `decisions`.
        first_s: Time of the first row, seconds.
        begun_s: Time of the last row, seconds. (In the table `jobs`, the first rows repeat older events.)
    """

    number: int
    first_s: float
    begun_s: float


def beginning(path: Path) -> Beginning | None:
    """Return the description of a segment's first batch; None if it cannot be read.

    Results are kept, so that a large store is listed again quickly.
    """
    try:
        about = path.stat()
    except OSError:
        return None
    return _beginning(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=16_384)
def _beginning(path: Path, size: int, changed_ns: int) -> Beginning | None:  # noqa: ARG001 - they identify the content
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            schema = pa.ipc.read_schema(pa.ipc.read_message(file))
            batch = _decoded(pa.ipc.read_message(file), schema, ("number", "time_s"))
            batch.validate(full=True)
            times = batch.column("time_s")
            number = batch.column("number")[0].as_py() if "number" in schema.names else -1
            return Beginning(int(number), float(times[0].as_py()), float(times[-1].as_py()))
    except (EOFError, pa.ArrowException, OSError, KeyError, IndexError, TypeError, UnicodeDecodeError):
        return None


def _decoded(message: Any, schema: Any, names: Sequence[str]) -> Any:
    """Return the batch of a message. If the batch is large, it has only the columns `names`."""
    import pyarrow as pa

    if message.body.size < COMPRESSED_BYTES:
        return pa.ipc.read_record_batch(message, schema)
    fields = [at for at, name in enumerate(schema.names) if name in names]
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    stream = b"".join((schema.serialize(), message.serialize()))
    return pa.ipc.open_stream(pa.py_buffer(stream), options=options).read_next_batch()


class SegmentWriter:
    """Appends batches of rows to a table.

    Args:
        folder: Folder of the segments.
        table: Name of the table.
        schema: Arrow schema of the table.
        keep_bytes: Maximum size of all segments together, bytes; the oldest segments are removed.
        keep_s: Age, seconds, above which `remove_older` removes rows; infinite: it removes no rows.
        segment_bytes: A segment with this many bytes gets no more batches.
        segment_rows: A segment with this many rows after its first batch gets no more batches. (The first
            batch of job events repeats the events of all unfinished jobs.)
    """

    def __init__(
        self,
        folder: Path,
        table: str,
        schema: Any,
        *,
        keep_bytes: int,
        keep_s: float = math.inf,
        segment_bytes: int = SEGMENT_BYTES,
        segment_rows: int = SEGMENT_ROWS,
    ) -> None:
        self._folder, self._table, self._schema = folder, table, schema
        self._keep_bytes, self._keep_s, self._segment_bytes = keep_bytes, keep_s, segment_bytes
        self._segment_rows = segment_rows
        self._path: Path | None = None
        self._rows = 0  # rows of the segment after its first batch
        self._begun_s = math.nan  # time of the newest row of the segment's first batch

    def begins(self, time_s: float) -> bool:
        """Return whether rows of the time `time_s`, seconds, would begin a new segment."""
        if self._path is not None and time_s - self._begun_s > self._keep_s / PER_KEPT:
            self._path = None
        return self._path is None

    def add(self, columns: dict[str, list[Any]]) -> None:
        """Append rows, given as columns, to the current segment.

        Raises:
            OSError: the write failed, for example because the disk is full; the file is unchanged.
            pyarrow.ArrowException: a value does not fit its column.
        """
        import pyarrow as pa

        batch = pa.record_batch(
            [pa.array(columns[one.name], one.type) for one in self._schema], schema=self._schema
        )
        newest_s = columns["time_s"][-1]
        data = batch.serialize() if batch.nbytes < COMPRESSED_BYTES else self._compressed(batch)
        if self.begins(newest_s):
            self._path, self._begun_s, self._rows = self._next_path(), newest_s, -batch.num_rows
            data = b"".join((self._schema.serialize(), data))
        assert self._path is not None
        size = self._append(self._path, data)
        self._rows += batch.num_rows
        if size >= self._segment_bytes or self._rows >= self._segment_rows:
            self._path = None

    def _compressed(self, batch: Any) -> memoryview:
        """Return a batch as a compressed message."""
        import pyarrow as pa

        buffer = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        pa.ipc.new_stream(buffer, self._schema, options=options).write_batch(batch)
        written = pa.BufferReader(buffer.getvalue())
        pa.ipc.read_message(written)  # the schema, with which each stream begins
        return memoryview(written.read_buffer())

    def remove_older(self, now_s: float) -> None:
        """Remove segments in which all rows are older than `keep_s` at the time `now_s`.

        The newest segment is kept. A segment without a readable row is as old as its file.

        Raises:
            OSError: a segment cannot be removed.
        """
        if self._keep_s == math.inf:
            return
        for path in segment_files(self._folder, self._table)[:-1]:
            times = times_of(path)
            newest_s = path.stat().st_mtime if times is None else times[1]
            if newest_s >= now_s - self._keep_s:
                return
            path.unlink()

    def _next_path(self) -> Path:
        """Return the path of the next segment. Remove the oldest segments to make space (`keep_bytes`)."""
        files = segment_files(self._folder, self._table)
        self._remove_oldest(files)
        last = int(files[-1].stem.rpartition("-")[2]) if files else 0
        return self._folder / f"{self._table}-{last + 1:06d}{SUFFIX}"

    def _append(self, path: Path, data: Any) -> int:
        """Append bytes to the segment file. Return the new length of the file, bytes."""
        file = -1
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            whole = os.fstat(file).st_size
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(file, left) :]
            except OSError:
                os.ftruncate(file, whole)
                raise
        except OSError:
            self._path = None  # begin a new segment: the start of the present one can be missing
            if file >= 0 and whole == 0:
                path.unlink(missing_ok=True)
            raise
        finally:
            if file >= 0:
                os.close(file)
        return whole + len(data)

    def _remove_oldest(self, files: list[Path]) -> None:
        sizes = [file.stat().st_size for file in files]
        while files and sum(sizes) > self._keep_bytes - self._segment_bytes:
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)


class StoredBatch(NamedTuple):
    """A batch of rows in a segment.

    Attributes:
        batch: The rows, as a `pyarrow.RecordBatch`. A column that is read only on request can be missing.
        message: The message in the file, from which `all_columns` reads the batch again; None: not needed.
        schema: Columns of the file.
    """

    batch: Any
    message: Any
    schema: Any

    def all_columns(self) -> Any:
        """Return the batch with all its columns.

        Raises:
            pyarrow.ArrowException, OSError: a column is damaged.
        """
        import pyarrow as pa

        if len(self.batch.schema) == len(self.schema):
            return self.batch
        found = pa.ipc.read_record_batch(self.message, self.schema)
        found.validate(full=True)
        return found


def merged(batches: Iterable[StoredBatch]) -> list[StoredBatch]:
    """Return the batches of one segment, with successive small and complete batches merged into one."""
    import pyarrow as pa

    found: list[StoredBatch] = []
    for small, group in groupby(batches, _is_small):
        ours = list(group)
        if small and len(ours) > 1:
            table = pa.Table.from_batches([one.batch for one in ours]).combine_chunks()
            ours = [StoredBatch(batch, None, ours[0].schema) for batch in table.to_batches()]
        found += ours
    return found


def has_value(path: Path, schema: Any, column: str, value: Any) -> bool:
    """Return whether a column of a segment has a value. Other columns of large batches are not decoded."""
    import pyarrow.compute as pc

    batches = SegmentReader(path, schema, only=column).batches()
    return any(pc.any(pc.equal(one.batch.column(column), value)).as_py() for one in batches)


def _is_small(one: StoredBatch) -> bool:
    return one.batch.num_rows < SMALL_ROWS and len(one.batch.schema) == len(one.schema)


@dataclass
class SegmentReader:
    """Reads a segment that can still grow. Each batch is read once.

    Attributes:
        path: The file.
        expected: Columns that the file must have, except columns in `ADDED`. Further columns are allowed.
        on_request: Name of a column that large batches leave out (see `StoredBatch`); "": all columns are
            read.
        only: Name of the only column that large batches have; "": they have all columns.
        at: Position in the file, bytes, up to which batches have been read.
        schema: Columns of the file; None until they have been read.
    """

    path: Path
    expected: Any = field(repr=False)
    on_request: str = ""
    only: str = ""
    at: int = 0
    schema: Any = field(default=None, repr=False)
    _names: list[str] = field(default_factory=list, repr=False)

    def batches(self) -> Iterator[StoredBatch]:
        """Yield the batches added since the last call, up to an invalid or incomplete batch.

        The next call tries to read that batch again.
        """
        import pyarrow as pa

        if self.left_bytes() <= 0:
            return
        try:
            mapped = pa.memory_map(str(self.path))
        except FileNotFoundError:  # the writer has removed the segment since
            return
        with mapped as file:
            whole = file.read_buffer()
            file.seek(self.at)
            while True:
                run = None if self.schema is None else read_run(whole, self.at, self.schema)
                if run is not None:
                    batch, self.at = run
                    file.seek(self.at)
                    yield StoredBatch(batch, None, self.schema)
                    continue
                try:
                    message = pa.ipc.read_message(file)
                    if self.schema is None:
                        schema = pa.ipc.read_schema(message)
                        if not all(one in schema or one.name in ADDED for one in self.expected):
                            return
                        self.schema, self.at = schema, file.tell()
                        names = [self.only] if self.only else schema.names
                        self._names = [name for name in names if name != self.on_request]
                        continue
                    batch = _decoded(message, self.schema, self._names)
                    batch.validate(full=True)
                except (EOFError, pa.ArrowException, OSError, UnicodeDecodeError):
                    return
                self.at = file.tell()
                yield StoredBatch(batch, message, self.schema)

    def left_bytes(self) -> int:
        """Return the number of bytes at the end of the file that have not been read, or cannot be read."""
        try:
            return self.path.stat().st_size - self.at
        except FileNotFoundError:  # the writer has removed the oldest segments
            return 0
