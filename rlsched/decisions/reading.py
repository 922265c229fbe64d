"""Reads a store of decisions. A broker can write to the store at the same time. Each row is read once."""

from __future__ import annotations

import bisect
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.collector import no_garbage
from rlsched.decide.record import DecisionRecord
from rlsched.decisions import columns
from rlsched.decisions.forecast_outcomes import KnownForecasts
from rlsched.decisions.schema import ForecastSeen, StoreInfo, read_info, schemas
from rlsched.decisions.segments import (
    SEGMENT_ROWS,
    SegmentReader,
    StoredBatch,
    beginning,
    has_value,
    merged,
    segment_files,
)
from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.errors import InputError

RECORD: Final = "record"
PART_BYTES: Final = 64 << 20
PART_ROWS: Final = 125_000
"""One part of a store has decisions of at most `PART_BYTES` bytes, and at most `PART_ROWS` decisions.

A part of 100,000 decisions is opened in 0.6 s of CPU time, with 260 MiB of memory in the process of the tab.
"""
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
        self._rows_about: dict[str, list[int]] = {}
        self.timeline = StoredTimeline()
        self.foreseen = KnownForecasts()

    def refresh(self) -> bool:
        """Read the rows added since the last call. Return whether rows were added."""
        with no_garbage():
            return self._refresh()

    def _refresh(self) -> bool:
        decisions, nodes = self._added("decisions"), self._added("nodes")
        jobs, forecasts = self._added("jobs"), self._added("forecasts")
        for stored in decisions:
            self._batches.append(stored)
            self._first_row.append(self._first_row[-1] + stored.batch.num_rows)
            self._numbers.append(stored.batch.column("number").to_numpy())
            self._times_s.append(stored.batch.column("time_s").to_numpy())
        if decisions:
            self._rows_about.clear()
            self.numbers = np.concatenate(self._numbers)
            self.times_s = np.concatenate(self._times_s)
            self._numbers, self._times_s = [self.numbers], [self.times_s]
            self.timeline.saw(float(self.times_s.min()), float(self.times_s.max()))
        for stored in nodes:
            self.timeline.add_nodes(stored.batch)
        for stored in jobs:
            self.timeline.add_jobs(stored.batch)
        for stored in forecasts:
            self.foreseen.add(stored.batch)
        if self._part is not None:  # attempts can begin in an earlier part, and end in a later one
            self.timeline.first_s = max(self.timeline.first_s, self._part.first_s)
            self.timeline.last_s = min(self.timeline.last_s, self._part.last_s)
        return bool(decisions or jobs or nodes or forecasts)

    def rows_about(self, job: str) -> list[int]:
        """Return the rows of the decisions that started or preempted a job, or considered it.

        (`DecisionRecord.turn` is the job that a decision considered.)
        """
        import pyarrow.compute as pc

        if job not in self._rows_about:
            self._rows_about[job] = rows = []
            for stored, first in zip(self._batches, self._first_row, strict=False):
                batch = stored.batch
                hits = pc.or_(pc.equal(batch.column("job"), job), pc.equal(batch.column("turn"), job))
                rows += (np.flatnonzero(hits.to_numpy(zero_copy_only=False)) + first).tolist()
        return self._rows_about[job]

    def _added(self, table: str) -> list[StoredBatch]:
        if self._part is None:
            found = parts(self.folder)
            self._part = found[-1] if found else None
        added: list[StoredBatch] = []
        for path in segment_files(self.folder, table):
            if self._part is not None and not self._part.includes_segment(path):
                continue
            if path not in self._segments:
                on_request = RECORD if table == "decisions" else ""
                self._segments[path] = SegmentReader(path, schemas()[table], on_request)
            added += merged(self._segments[path].batches())
        return added

    def __len__(self) -> int:
        return self._first_row[-1]

    @property
    def period(self) -> tuple[float, float]:
        """The period of the part, seconds: from its first decision to that of the next part, if any."""
        return (-math.inf, math.inf) if self._part is None else (self._part.first_s, self._part.last_s)

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

    def values(self, name: str, rows: list[int]) -> list[Any]:
        """Return the values of some rows in one column."""
        places = (self._at(row) for row in rows)
        return [self._batches[number].batch.column(name)[at].as_py() for number, at in places]

    def row_of(self, number: int) -> int | None:
        """Return the row of the decision with this number; None if there is no such decision.

        After a change of the policy, several decisions can have the same number; the last row is returned.
        """
        found = np.flatnonzero(self.numbers == number)
        return int(found[-1]) if len(found) else None

    def column(self, name: str) -> list[Any]:
        """Return the values of a column for all decisions."""
        return [cell for stored in self._batches for cell in columns.values(stored.batch.column(name))]

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
        last_s: Time of the next part's first decision, seconds; infinite for the last part, which can grow.
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
    full. Only the first batch of each segment is read.
    """
    groups: list[list[Path]] = []
    size = rows = 0
    later: int | None = None  # number of the first decision in the next segment
    for path in reversed(segment_files(folder, "decisions")):
        about = beginning(path)
        begin = None if about is None else about.number
        own = _size(path), SEGMENT_ROWS if begin is None or later is None else max(0, later - begin)
        size, rows, later = size + own[0], rows + own[1], begin
        if not groups or size > PART_BYTES or rows > PART_ROWS:
            groups.append([])
            size, rows = own
        groups[-1].append(path)
    if len(groups) <= 1:
        everything = dict.fromkeys(("decisions", *_BESIDE), "")
        return [Part(-math.inf, math.inf, everything, everything)]
    groups = [group[::-1] for group in groups[::-1]]
    begins_s = [-math.inf]
    for group in groups:
        readable = (about.first_s for about in map(beginning, group) if about is not None)
        begins_s.append(next(readable, begins_s[-1]))
    begins_s = begins_s[1:]
    beside = {table: segment_files(folder, table) for table in _BESIDE}
    begun_s = {table: _begun_s(segments) for table, segments in beside.items()}
    found: list[Part] = []
    for group, first_s, last_s in zip(groups, begins_s, [*begins_s[1:], math.inf], strict=True):
        first = {"decisions": group[0].name if found else ""}
        last = {"decisions": group[-1].name if last_s < math.inf else ""}
        for table, segments in beside.items():
            # rows of the part can be in the segment before the first that begins in it, and in the next
            at = max(bisect.bisect_left(begun_s[table], first_s) - 1, 0)
            until = bisect.bisect_left(begun_s[table], last_s)
            none = "" if last_s == math.inf else "~"
            first[table] = "" if not found else segments[at].name if segments else none
            last[table] = segments[until].name if until < len(segments) and last_s < math.inf else ""
        found.append(Part(first_s, last_s, first, last))
    return found


def part_has(folder: Path, part: Part, table: str, column: str, value: Any) -> bool:
    """Return whether a column of a table has a value in a part, without opening the part."""
    segments = [path for path in segment_files(folder, table) if part.includes_segment(path)]
    return any(has_value(path, schemas()[table], column, value) for path in reversed(segments))


def _begun_s(segments: list[Path]) -> list[float]:
    """Return the time of the newest row in the first batch of each segment, seconds, in ascending order."""
    found = list[float]()
    for path in segments:
        about = beginning(path)
        before_s = found[-1] if found else -math.inf
        found.append(before_s if about is None else max(before_s, about.begun_s))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the writer has removed the oldest segments
        return 0


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
        for row in columns.rows(stored.batch, ForecastSeen.__struct_fields__, math.nan)
    ]
    return [one for one in found if one.time_s >= since_s]
