"""The account that every converter keeps: rows in, rows kept, and rows skipped by a named reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from rlsched.errors import TraceError

LINES_KEPT = 10
"""Of how many rows an account remembers the line, for each reason."""

AGAIN = "the same line again, field for field"
"""The reason for a row that is there twice: in one file, or in exports whose times overlap."""

Item = TypeVar("Item")


class MalformedError(Exception):
    """A row that does not follow its format.

    Attributes:
        kind: A short name, under which such rows are counted.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class LeftOutError(Exception):
    """A well-formed row that is no job of the trace; its text is the reason under which it is counted."""


@dataclass
class Tally:
    """How many rows share a reason.

    Attributes:
        count: How many.
        lines: Lines of the first `LINES_KEPT` of them.
        example: What was expected and what came, in the first of them; "" where the reason says it all.
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
    """Where the rows of one file went: `rows` = `kept` + the counts of `skipped`, always.

    Attributes:
        path: The file.
        strict: A malformed row is an error.
        rows: Rows in: lines with data, without header, comments and blank lines (Philly: jobs of the list).
        kept: Rows that are in the trace, or that a job of the trace was made from.
        skipped: By reason.
        noted: By remark: rows that were kept, but not quite as they stood.
        seen: Digests of the rows that were read; exports of one list of jobs share them.
    """

    path: Path
    strict: bool = False
    rows: int = 0
    kept: int = 0
    skipped: dict[str, Tally] = field(default_factory=dict)
    noted: dict[str, Tally] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set, repr=False)
    _remarks: list[tuple[int, str]] | None = field(default=None, repr=False)
    """Remarks on the row that is being read, which count once it is kept."""

    def read(
        self,
        rows: Iterable[tuple[int, Item | MalformedError]],
        use: Callable[[Item], object],
        fields: Callable[[Item], bytes] | None = None,
    ) -> None:
        """Hand each row to `use`, and count it by what comes of it.

        Args:
            rows: Line and row; a `MalformedError` stands for a row that could not even be split.
            use: Raises `MalformedError` or `LeftOutError` where it has no use for the row.
            fields: All fields of a row as bytes; a row whose bytes were seen before is skipped as `AGAIN`.
                None: equal rows do not matter, and all are used.

        Raises:
            TraceError: a malformed row, if `strict`.
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
        """Do with a row that `read` has kept what had to wait for the others; it is skipped if that fails.

        Raises:
            TraceError: a malformed row, if `strict`.
        """
        try:
            use()
        except (MalformedError, LeftOutError) as error:
            self.kept -= 1
            self._skip(line, error)

    def leave_out(self, line: int, reason: str) -> None:
        """Skip a row that `read` has kept."""
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
        """Remark on a row; it counts if the row is kept."""
        if self._remarks is None:
            self._note(line, remark)
        else:
            self._remarks.append((line, remark))

    def _note(self, line: int, remark: str) -> None:
        self.noted.setdefault(remark, Tally()).add(line)


def summed(tallies: Sequence[dict[str, Tally]]) -> dict[str, Tally]:
    """The tallies of several files by reason, without lines, which belong to one file."""
    found: dict[str, Tally] = {}
    for of_file in tallies:
        for reason, tally in of_file.items():
            total = found.setdefault(reason, Tally(example=tally.example))
            total.count += tally.count
    return found
