"""Sequences of integers that mostly increase by one, stored as runs, so that they need little memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Numbers:
    """An ascending sequence of integers with few gaps, such as all job numbers."""

    def __init__(self) -> None:
        self._first: list[int] = []  # first number of each run
        self._before: list[int] = []  # count of numbers before each run
        self._last = 0

    def append(self, number: int) -> None:
        """Append an integer that is higher than all stored integers."""
        if not self._first or number != self._last + 1:
            count = len(self)
            self._first.append(number)
            self._before.append(count)
        self._last = number

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return (first integer, count) of each run of consecutive integers."""
        ends = [*self._before[1:], len(self)] if self._first else []
        return [
            (first, end - before) for first, before, end in zip(self._first, self._before, ends, strict=True)
        ]

    def append_run(self, first: int, count: int) -> None:
        """Append `count` consecutive integers from `first` on; `first` is above all stored integers."""
        self.append(first)
        self._last = first + count - 1

    def __len__(self) -> int:
        return self._before[-1] + self._last - self._first[-1] + 1 if self._first else 0

    def __contains__(self, number: int) -> bool:
        return self.below(number + 1) > self.below(number)

    def below(self, number: int) -> int:
        """Return how many of the stored integers are lower than `number`."""
        run = bisect_left(self._first, number) - 1
        if run < 0:
            return 0
        end = self._before[run + 1] if run + 1 < len(self._before) else len(self)
        return min(self._before[run] + number - self._first[run], end)

    def numbers_between(self, first: int, end: int) -> list[int]:
        """Return the integers at positions `first` to `end` - 1; the lowest integer has position 0."""
        found = []
        for place in range(max(first, 0), min(end, len(self))):
            run = bisect_right(self._before, place) - 1
            found.append(self._first[run] + place - self._before[run])
        return found


class NumberOfSeq:
    """Map from the sequence number of a job in the cluster state (`seq`) to its job number.

    Only the jobs at which the difference of the two numbers changes are stored.
    """

    def __init__(self) -> None:
        self._seqs: list[int] = []  # first seq of each run
        self._ahead: list[int] = []  # job number minus seq, for each run
        self._last = -1

    def add(self, seq: int, number: int) -> None:
        """Record the job number `number` of the job with the sequence number `seq` in the cluster state."""
        if not self._seqs or number - seq != self._ahead[-1]:
            self._seqs.append(seq)
            self._ahead.append(number - seq)
        self._last = seq

    def __getitem__(self, seq: int) -> int:
        if not self._seqs or not self._seqs[0] <= seq <= self._last:
            raise KeyError(seq)
        return seq + self._ahead[bisect_right(self._seqs, seq) - 1]

    def get(self, seq: int) -> int | None:
        """Return the job number of the job with the sequence number `seq`; None if it was not recorded."""
        known = bool(self._seqs) and self._seqs[0] <= seq <= self._last
        return self[seq] if known else None
