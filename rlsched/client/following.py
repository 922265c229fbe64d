"""Follows the states of a job and the output of its ranks. Reads the last lines of the output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.wire.messages import JobInfo, LogChunk
from rlsched.wire.states import FINISHED

POLL_S: Final = 0.25
PATIENCE_S: Final = 60.0
"""Time, seconds, for which the broker can be unavailable before `follow` fails."""
TAIL_BYTES: Final = 1 << 14
"""Number of bytes that `tail` reads from the end of each rank's output."""
TAIL_RANKS: Final = 8
"""Maximum number of ranks whose output `tail` reads, because each rank needs a query."""


class AsksBroker(Protocol):
    """The methods of `Client` that this module uses."""

    def job(self, number: int) -> JobInfo:
        """Return a job."""
        ...

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> LogChunk:
        """Return a piece of a job's output."""
        ...


def follow(
    client: AsksBroker, number: int, *, labelled: bool | None = None, to_its_end: bool = True
) -> Iterator[JobInfo | bytes]:
    """Yield the job after each query, and then the new output of its ranks.

    If the job has several ranks, their output is yielded as whole lines, so that lines are not mixed.

    Args:
        number: Job number; the job need not have started.
        labelled: Whether lines begin with `RANK: `; None: they do if the job has several ranks.
        to_its_end: Whether to follow the job until it has finished; False: stop after the current output.

    Raises:
        InputError: the job is an array. Also raised at the end if the output of a rank could not be read.
        BrokerUnavailableError: the broker has been unavailable for `PATIENCE_S`.
    """
    ranks: dict[int, _RankOutput] = {}
    attempt, info = 0, None
    while True:
        if info is None:
            info = client.job(number)
            if info.num_tasks:
                client.read_log(
                    number
                )  # rejected: an array has no output of its own; the error names its tasks
        else:
            info = _patiently(client, number)
        yield info
        if info.attempt != attempt:
            yield from (rest for rank in ranks.values() if (rest := rank.rest()))
            attempt, ranks = info.attempt, {}
        label = is_gang(info) if labelled is None else labelled
        silent = True
        for rank in range(num_ranks(info) if attempt else 0):
            reader = ranks.setdefault(rank, _RankOutput(rank, is_labelled=label, is_gang=is_gang(info)))
            for piece in reader.new(client, number, attempt):
                silent = False
                yield piece
        if silent and (info.state in FINISHED or not to_its_end):
            yield from (rest for rank in ranks.values() if (rest := rank.rest()))
            unread = [f"rank {at}: {rank.unread}" for at, rank in ranks.items() if rank.unread]
            if unread:
                raise InputError("; ".join(unread))
            return
        if silent:
            time.sleep(POLL_S)


def _patiently(client: AsksBroker, number: int) -> JobInfo:
    """Return the job; if the broker is unavailable, repeat the query for `PATIENCE_S`."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.job(number)
        except BrokerUnavailableError:
            if time.monotonic() >= give_up_s:
                raise
        time.sleep(POLL_S)


@dataclass
class Tail:
    """The last lines of a job's output.

    Attributes:
        job: The job.
        of_rank: Rank -> last lines of its output; ranks without output are missing.
        unread: Rank -> reason why its output could not be read; other ranks are missing.
        left_out: Number of ranks whose output was not requested.
    """

    job: JobInfo
    of_rank: dict[int, list[bytes]] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no lines and no errors."""
        return not self.of_rank and not self.unread

    def lines(self, most: int | None = None) -> list[bytes]:
        """Return the lines, rank by rank; each line begins with `RANK: ` if the job has several ranks.

        Args:
            most: Maximum number of lines, divided equally among the ranks; of each rank, the last lines are
                returned. None: all lines.
        """
        each = None if most is None else max(most // max(len(self.of_rank), 1), 1)
        gang, found = is_gang(self.job), list[bytes]()
        for rank in sorted({*self.of_rank, *self.unread}):
            label = f"{rank}: ".encode() if gang else b""
            kept = self.of_rank.get(rank, [])
            found += [label + line for line in (kept if each is None else kept[-each:])]
            if rank in self.unread:
                found.append(label + f"({self.unread[rank]})".encode())
        if self.left_out:
            found.append(f"({self.left_out:,} more ranks; `rlsched logs --rank N` shows each)".encode())
        return found


def tail(client: AsksBroker, info: JobInfo, num_bytes: int = TAIL_BYTES) -> Tail:
    """Return the last lines of the output of a job's first `TAIL_RANKS` ranks; none before its start."""
    ranks = num_ranks(info) if info.attempt else 0
    found = Tail(info, left_out=max(ranks - TAIL_RANKS, 0))
    for rank in range(min(ranks, TAIL_RANKS)):
        try:
            chunk = client.read_log(info.job, rank=rank, offset=-num_bytes)
        except InputError as error:  # such as a node that is down
            found.unread[rank] = str(error)
            continue
        lines = chunk.data.splitlines()
        if chunk.offset > 0 and len(lines) > 1:
            del lines[0]  # the beginning of this line is missing
        if lines:
            found.of_rank[rank] = lines
    return found


def num_ranks(info: JobInfo) -> int:
    """Return the number of ranks of a job's current or last attempt: one per node."""
    return len(info.nodes) + info.nodes_omitted


def is_gang(info: JobInfo) -> bool:
    """Return whether a job has several ranks."""
    return num_ranks(info) > 1


class _RankOutput:
    """Reads the output of one rank. Each call of `new` continues where the previous call stopped.

    If the job has several ranks, the output is returned as whole lines.
    """

    def __init__(self, number: int, *, is_labelled: bool, is_gang: bool) -> None:
        self._number, self._is_gang = number, is_gang
        self._label = f"{number}: ".encode() if is_labelled else b""
        self._offset = 0
        self._line = b""
        self.unread = ""
        """Reason why the last piece of the output could not be read; "" if it was read."""

    def new(self, client: AsksBroker, job: int, attempt: int) -> Iterator[bytes]:
        """Yield new output; if the job has several ranks, buffer an incomplete last line."""
        while True:
            try:
                chunk = client.read_log(job, rank=self._number, offset=self._offset)
            except (InputError, BrokerUnavailableError) as error:  # retried at the next query
                self.unread = str(error)
                return
            self.unread = ""
            if not chunk.data or chunk.attempt != attempt:
                return
            self._offset = chunk.offset + len(chunk.data)
            if not self._is_gang:
                yield chunk.data
                continue
            *lines, self._line = (self._line + chunk.data).split(b"\n")
            if lines:
                yield b"".join(self._label + line + b"\n" for line in lines)

    def rest(self) -> bytes:
        """Return the buffered last line, or b"" if there is none."""
        return self._label + self._line + b"\n" if self._line else b""
