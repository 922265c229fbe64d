"""Counts of the rows that a converter read and kept, and of the rows that it skipped, by reason.

An `Account` has the counts of one file; it is not an account that is charged for jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from rlsched.errors import TraceError

LINES_KEPT = 10
"""Maximum number of line numbers that a `Tally` stores."""

AGAIN = "the same line again, field for field"
"""Reason for skipping a row that is repeated, in one file or in exports with overlapping times."""

Item = TypeVar("Item")


class MalformedError(Exception):
    """A row violates its format.

    Attributes:
        kind: Short name of the fault; rows with the same fault are counted together under this name.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class LeftOutError(Exception):
    """A row is well-formed, but does not become a job of the trace. The text of the error is the reason."""


@dataclass
class Tally:
    """Counter of the rows that are skipped for the same reason, or that get the same remark.

    Attributes:
        count: Number of rows.
        lines: Line numbers of the first `LINES_KEPT` rows.
        example: Expected and found value in the first row; "" if the reason is clear without them.
    """

    count: int = 0
    lines: list[int] = field(default_factory=list)
    example: str = ""

    def add(self, line: int, example: str = "") -> None:
        """Count one more row."""
        if self.count < LINES_KEPT:
            self.lines.append(line)
        if not self.count:
            self.example = example
        self.count += 1


@dataclass
class Account:
    """Counts of the rows of one file. `rows` always equals `kept` plus the counts in `skipped`.

    Attributes:
        path: The file.
        strict: Whether a malformed row is an error. False: it is skipped.
        rows: Rows read, without header, comments and blank lines. For Philly, jobs in its JSON list.
        kept: Rows that became a job of the trace, or a part of one.
        skipped: Reason -> rows that were skipped.
        noted: Remark -> rows that were kept with the change that the remark describes.
        seen: Digests of the rows read so far. If several files list jobs, their `Account`s share the digests.
    """

    path: Path
    strict: bool = False
    rows: int = 0
    kept: int = 0
    skipped: dict[str, Tally] = field(default_factory=dict)
    noted: dict[str, Tally] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set, repr=False)
    _remarks: list[tuple[int, str]] | None = field(default=None, repr=False)
    """(line, remark) pairs for the row that `read` processes; counted only if the row is kept. None: `read`
    is not running."""

    def read(
        self,
        rows: Iterable[tuple[int, Item | MalformedError]],
        use: Callable[[Item], object],
        fields: Callable[[Item], bytes] | None = None,
    ) -> None:
        """Pass each row to `use`, and count the row as kept or skipped.

        Args:
            rows: Pairs of line number and row. A line that cannot be split has a `MalformedError` as its row.
            use: Function that takes a row; it raises `MalformedError` or `LeftOutError` to skip the row.
            fields: Function that returns all fields of a row as bytes. A row with the same bytes as an
                earlier row is skipped with the reason `AGAIN`. None: repeated rows are used.

        Raises:
            TraceError: `strict` is true, and a row is malformed.
        """
        for line, row in rows:
            self.rows += 1
            self._remarks = []
            try:
                if isinstance(row, MalformedError):
                    raise row
                if fields is not None:
                    self._refuse_again(fields(row))
                use(row)
            except (MalformedError, LeftOutError) as error:
                self._skip(line, error)
            else:
                self.kept += 1
                for remark in self._remarks:
                    self._note(*remark)
        self._remarks = None

    def _refuse_again(self, fields: bytes) -> None:
        digest = blake2b(fields, digest_size=16).digest()
        if digest in self.seen:
            raise LeftOutError(AGAIN)
        self.seen.add(digest)

    def use_later(self, line: int, use: Callable[[], object]) -> None:
        """Call `use` for a row that `read` has counted as kept. Count the row as skipped if `use` raises
        `MalformedError` or `LeftOutError`.

        Raises:
            TraceError: `strict` is true, and the row is malformed.
        """
        try:
            use()
        except (MalformedError, LeftOutError) as error:
            self.kept -= 1
            self._skip(line, error)

    def leave_out(self, line: int, reason: str) -> None:
        """Count a row as skipped, although `read` has already counted it as kept."""
        self.kept -= 1
        self._skip(line, LeftOutError(reason))

    def _skip(self, line: int, error: MalformedError | LeftOutError) -> None:
        if isinstance(error, LeftOutError):
            self.skipped.setdefault(str(error), Tally()).add(line)
            return
        if self.strict:
            raise TraceError(f"{self.path}: line {line}: {error}") from error
        self.skipped.setdefault(f"malformed: {error.kind}", Tally()).add(line, str(error))

    def note(self, line: int, remark: str) -> None:
        """Count a remark on a row. While `read` processes the row, count only if it keeps the row."""
        if self._remarks is None:
            self._note(line, remark)
        else:
            self._remarks.append((line, remark))

    def _note(self, line: int, remark: str) -> None:
        self.noted.setdefault(remark, Tally()).add(line)


def summed(tallies: Sequence[dict[str, Tally]]) -> dict[str, Tally]:
    """Sum the tallies of several files by reason. The sums have no line numbers, because files differ."""
    found: dict[str, Tally] = {}
    for of_file in tallies:
        for reason, tally in of_file.items():
            total = found.setdefault(reason, Tally(example=tally.example))
            total.count += tally.count
    return found
