"""Counts of the rows that a converter read, kept, and skipped for each reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from rlsched.errors import TraceError

LINES_KEPT = 10
"""Maximum number of line numbers that an account stores for each reason."""

AGAIN = "the same line again, field for field"
"""Reason for skipping a duplicate row: repeated in one file, or in exports with overlapping times."""

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
    """A row is well-formed, but does not become a job of the trace. Rows are counted by the error's text."""


@dataclass
class Tally:
    """Counter of the rows with the same reason.

    Attributes:
        count: Number of rows.
        lines: Line numbers of the first `LINES_KEPT` rows.
        example: Values expected and found in the first row; "" if the reason is clear without an example.
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
    """Counts of the rows of one file. `rows` always equals `kept` plus the counts of `skipped`.

    Attributes:
        path: The file.
        strict: Whether a malformed row is an error.
        rows: Rows read: lines with data, without header, comments and blank lines (Philly: jobs of the list).
        kept: Rows that are in the trace, or contributed to a job of the trace.
        skipped: Skipped rows, by reason.
        noted: Rows that were kept with a change, by remark.
        seen: Digests of the rows read so far; all exports of one list of jobs share this set.
    """

    path: Path
    strict: bool = False
    rows: int = 0
    kept: int = 0
    skipped: dict[str, Tally] = field(default_factory=dict)
    noted: dict[str, Tally] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set, repr=False)
    _remarks: list[tuple[int, str]] | None = field(default=None, repr=False)
    """Remarks on the current row; counted only if the row is kept."""

    def read(
        self,
        rows: Iterable[tuple[int, Item | MalformedError]],
        use: Callable[[Item], object],
        fields: Callable[[Item], bytes] | None = None,
    ) -> None:
        """Pass each row to `use`, and count the row as kept or skipped.

        Args:
            rows: Pairs of line number and row; a `MalformedError` in place of a row that could not be split.
            use: Function that takes a row; it raises `MalformedError` or `LeftOutError` to skip the row.
            fields: Function that returns all fields of a row as bytes. A row with the same bytes as an
                earlier row is skipped with the reason `AGAIN`. None: duplicate rows are used.

        Raises:
            TraceError: a row is malformed, if `strict`.
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
        """Call `use` for a kept row after all rows have been read; if `use` fails, count the row as skipped.

        Raises:
            TraceError: The row is malformed, if `strict`.
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
        """Count a remark on a row; during `read`, the remark counts only if the row is kept."""
        if self._remarks is None:
            self._note(line, remark)
        else:
            self._remarks.append((line, remark))

    def _note(self, line: int, remark: str) -> None:
        self.noted.setdefault(remark, Tally()).add(line)


def summed(tallies: Sequence[dict[str, Tally]]) -> dict[str, Tally]:
    """Sum the tallies of several files by reason, without line numbers, which are valid for one file only."""
    found: dict[str, Tally] = {}
    for of_file in tallies:
        for reason, tally in of_file.items():
            total = found.setdefault(reason, Tally(example=tally.example))
            total.count += tally.count
    return found
