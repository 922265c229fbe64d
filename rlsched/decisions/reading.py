"""Reads a store of decisions. A broker can write to the store at the same time. Each row is read once."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.collector import no_garbage
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.forecast_outcomes import KnownForecasts
from rlsched.decisions.schema import ForecastSeen, JobEvent, NodeChange, StoreInfo, read_info, schemas
from rlsched.decisions.segments import (
    SEGMENT_ROWS,
    SegmentReader,
    StoredBatch,
    first_number,
    segment_files,
    times_of,
)
from rlsched.decisions.timeline import Timeline
from rlsched.errors import InputError

RECORD: Final = "record"
PART_BYTES: Final = 32 << 20
PART_ROWS: Final = 50_000
"""One part of a store has decisions of at most `PART_BYTES` bytes, and at most `PART_ROWS` decisions."""
COMPLETE: Final = 8
"""Number of batches that a reader keeps together with their records. A batch of 1,000 decisions takes about 2
MiB.
"""
_BESIDE: Final = ("jobs", "forecasts")
"""Tables that are split into parts at the same times as the table `decisions`."""
_DAMAGED: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""Errors that the decoding of a damaged record can raise."""
_decoder = msgspec.msgpack.Decoder(DecisionRecord)


class StoreReader:
    """Reads a store of decisions, or one part of it. `refresh` reads the rows that are new in the files.

    Args:
        folder: The store.
        part: The part to read (see `parts`); None: the last part, to which a broker adds rows.

    Attributes:
        info: Description of the store.
        numbers: (D,) number of each decision, in the order of writing. The row of a decision is its index in
            this array.
        times_s: (D,) times of the decisions, seconds.
        rows_of: Job -> rows of the decisions that started or preempted the job, or considered it
            (`DecisionRecord.turn`).
        timeline: Events of jobs and nodes.
        foreseen: Forecasts with known outcomes.

    Raises:
        InputError: there is no store, or the store has another version.
    """

    def __init__(self, folder: str | Path, part: Part | None = None) -> None:
        self.folder = Path(folder)
        self._part = part
        self.info: StoreInfo = read_info(self.folder)
        self._segments: dict[Path, SegmentReader] = {}
        self._batches: list[StoredBatch] = []  # batches of the table `decisions`
        self._complete: dict[int, Any] = {}  # the last batches of which records were read, by index
        self._first_row: list[int] = [0]  # first row of each batch; last, the number of all rows
        self._numbers: list[NDArray[np.int64]] = []
        self._times_s: list[NDArray[np.float64]] = []
        self.numbers: NDArray[np.int64] = np.zeros(0, np.int64)
        self.times_s: NDArray[np.float64] = np.zeros(0)
        self.rows_of: dict[str, list[int]] = {}
        self.timeline = Timeline()
        self.foreseen = KnownForecasts()

    def refresh(self) -> bool:
        """Read the rows added since the last call. Return whether rows were added."""
        with no_garbage():
            return self._refresh()

    def _refresh(self) -> bool:
        batches = [*self._added("decisions")]
        for stored in batches:
            batch = stored.batch
            self._batches.append(stored)
            self._first_row.append(self._first_row[-1] + batch.num_rows)
            self._numbers.append(batch.column("number").to_numpy())
            self._times_s.append(batch.column("time_s").to_numpy())
            self._index(batch)
        if batches:
            self.numbers = np.concatenate(self._numbers)
            self.times_s = np.concatenate(self._times_s)
            self._numbers, self._times_s = [self.numbers], [self.times_s]
        nodes, jobs = [*self._added("nodes")], [*self._added("jobs")]
        forecasts = [*self._added("forecasts")]
        for stored in nodes:
            self.timeline.add_nodes(_rows(stored.batch, NodeChange))
        for stored in jobs:
            self.timeline.add_jobs(_rows(stored.batch, JobEvent))
        for stored in forecasts:
            self.foreseen.add(stored.batch)
        if batches:
            self.timeline.saw(float(self.times_s.min()), float(self.times_s.max()))
        if self._part is not None and self.timeline.first_s < self._part.first_s:
            self.timeline.first_s = self._part.first_s  # attempts can begin in an earlier part
        return bool(batches or jobs or nodes or forecasts)

    def _index(self, batch: Any) -> None:
        first = self._first_row[-2]
        about = zip(batch.column("job").to_pylist(), batch.column("turn").to_pylist(), strict=True)
        rows_of = self.rows_of
        for row, (job, turn) in enumerate(about, first):
            if job:
                rows_of.setdefault(job, []).append(row)
            if turn and turn != job:
                rows_of.setdefault(turn, []).append(row)

    def _added(self, table: str) -> Iterator[StoredBatch]:
        if self._part is None:
            found = parts(self.folder)
            self._part = found[-1] if found else None
        for path in segment_files(self.folder, table):
            if self._part is not None and not self._part.includes_segment(path):
                continue
            if path not in self._segments:
                on_request = RECORD if table == "decisions" else ""
                self._segments[path] = SegmentReader(path, schemas()[table], on_request)
            yield from self._segments[path].batches()

    def __len__(self) -> int:
        return self._first_row[-1]

    def record(self, row: int) -> DecisionRecord:
        """Return the decision record of a row.

        Raises:
            InputError: the record is damaged.
        """
        import pyarrow as pa

        number, at = self._at(row)
        try:
            return _decoder.decode(self._all_columns(number).column(RECORD)[at].as_py())
        except (*_DAMAGED, pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.folder}: the record of decision {self.numbers[row]} is damaged; "
                "choose another decision"
            ) from error

    def cells(self, row: int) -> dict[str, Any]:
        """Return the values of a row by column name, without the decision record."""
        number, at = self._at(row)
        batch = self._batches[number].batch
        return {name: batch.column(name)[at].as_py() for name in batch.schema.names if name != RECORD}

    def row_of(self, number: int) -> int | None:
        """Return the row of the decision with this number; None if there is no such decision.

        After a change of the policy, several decisions can have the same number; the last row is returned.
        """
        found = np.flatnonzero(self.numbers == number)
        return int(found[-1]) if len(found) else None

    def column(self, name: str) -> list[Any]:
        """Return the values of a column for all decisions."""
        return [cell for stored in self._batches for cell in stored.batch.column(name).to_pylist()]

    def _at(self, row: int) -> tuple[int, int]:
        """Return the index of a row's batch, and the position of the row in this batch."""
        number = bisect.bisect_right(self._first_row, row) - 1
        return number, row - self._first_row[number]

    def _all_columns(self, number: int) -> Any:
        """Return batch `number` with its decision records; keep the last `COMPLETE` batches in memory."""
        if number not in self._complete:
            if len(self._complete) >= COMPLETE:
                self._complete.pop(next(iter(self._complete)))
            self._complete[number] = self._batches[number].all_columns()
        return self._complete[number]

    def cut_short(self) -> list[str]:
        """Return the names of files that end with an incomplete batch, after a crash or during a write."""
        return [path.name for path, segment in self._segments.items() if segment.left_bytes() > 0]


class Part(NamedTuple):
    """A part of a store, small enough to be read into memory at once.

    Attributes:
        first_s: Time of the first decision in the part, seconds.
        last_s: Time of the last decision in the part, seconds; infinite for the last part, which can grow.
        first: Table -> name of its first segment file in the part. "": the first segment of the table; "~":
            the part has no segment of the table.
        last: Table -> name of its last segment file in the part. "": the last segment of the table.
    """

    first_s: float
    last_s: float
    first: dict[str, str]
    last: dict[str, str]

    def includes_segment(self, path: Path) -> bool:
        """Return whether this part of the store includes a segment. Every part includes all node events."""
        table = path.name.partition("-")[0]
        if table == "nodes":
            return True
        last = self.last[table]
        return self.first[table] <= path.name and (not last or path.name <= last)


def parts(folder: Path) -> list[Part]:
    """Return the parts of a store, oldest first.

    A part has at most about `PART_ROWS` decisions, with a size of at most `PART_BYTES`, unless a single
    segment has more. The count of decisions in a segment is estimated: the number of the first decision in
    the next segment, minus the number of the first decision in this segment. The newest segment counts as
    full.
    """
    groups: list[list[Path]] = []
    size = rows = 0
    later: int | None = None  # number of the first decision in the next segment
    for path in reversed(segment_files(folder, "decisions")):
        begin = first_number(path)
        own = path.stat().st_size, SEGMENT_ROWS if begin is None or later is None else max(0, later - begin)
        size, rows, later = size + own[0], rows + own[1], begin
        if not groups or size > PART_BYTES or rows > PART_ROWS:
            groups.append([])
            size, rows = own
        groups[-1].append(path)
    if len(groups) <= 1:
        everything = dict.fromkeys(("decisions", *_BESIDE), "")
        return [Part(-math.inf, math.inf, everything, everything)]
    beside = {
        table: [(path.name, times_of(path)) for path in segment_files(folder, table)] for table in _BESIDE
    }
    found: list[Part] = []
    for number, group in enumerate(reversed(groups)):
        begins, ends = times_of(group[-1]), times_of(group[0])
        is_last = number == len(groups) - 1
        first_s = begins[0] if begins else -math.inf
        last_s = math.inf if is_last or ends is None else ends[1]
        first = {"decisions": "" if number == 0 else group[-1].name}
        last = {"decisions": "" if is_last else group[0].name}
        for table, segments in beside.items():
            mine = [name for name, times in segments if times and times[1] >= first_s]
            before = [name for name, times in segments if times and times[1] >= last_s]
            newest = segments[-1][0] if segments else ""  # rows can still be added to this segment
            first[table] = mine[0] if mine else newest if is_last else "~"
            last[table] = before[0] if before else ""
        found.append(Part(first_s, last_s, first, last))
    return found


def _rows(batch: Any, kind: type[JobEvent | NodeChange | ForecastSeen]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as tuples in the field order of `kind`; a missing column is read as nan."""
    there = batch.schema.names
    columns = [
        batch.column(name).to_pylist() if name in there else repeat(math.nan, batch.num_rows)
        for name in kind.__struct_fields__
    ]
    return zip(*columns, strict=True)


def find_stores(folder: str | Path) -> dict[str, Path]:
    """Return a dict: relative path (`.`: the folder itself) -> store, for all stores in a folder."""
    folder = Path(folder)
    return {str(path.parent.relative_to(folder)): path.parent for path in sorted(folder.rglob("store.json"))}


def read_records(folder: str | Path) -> list[DecisionRecord]:
    """Return all decision records of a store, in the order of writing.

    Raises:
        InputError: there is no store, or a record is damaged.
    """
    read_info(folder)
    found: list[DecisionRecord] = []
    for part in parts(Path(folder)):
        reader = StoreReader(folder, part)
        reader.refresh()
        found += [reader.record(row) for row in range(len(reader))]
    return found


def last_records(folder: str | Path, most: int) -> list[DecisionRecord]:
    """Return the last `most` decision records of a store, oldest first. Damaged records are skipped."""
    found: list[DecisionRecord] = []
    for path in reversed(segment_files(Path(folder), "decisions")):
        records: list[DecisionRecord] = []
        for stored in SegmentReader(path, schemas()["decisions"]).batches():
            for packed in stored.batch.column(RECORD).to_pylist():
                with suppress(*_DAMAGED):
                    records.append(_decoder.decode(packed))
        found = records + found
        if len(found) >= most:
            break
    return found[-most:]


def last_forecasts(folder: str | Path, since_s: float) -> list[ForecastSeen]:
    """Return the forecasts whose outcomes became known at or after `since_s`, in the order of writing."""
    found = [
        ForecastSeen(**dict(zip(ForecastSeen.__struct_fields__, row, strict=True)))
        for path in segment_files(Path(folder), "forecasts")
        for stored in SegmentReader(path, schemas()["forecasts"]).batches()
        for row in _rows(stored.batch, ForecastSeen)
    ]
    return [one for one in found if one.time_s >= since_s]
