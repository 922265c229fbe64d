"""A job as it goes: its states, and the output of all its ranks; or the end of what there is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.wire.messages import JobInfo, LogChunk

POLL_S: Final = 0.25
PATIENCE_S: Final = 60.0
"""A broker that is away for less is waited for."""
OVER: Final = ("completed", "failed", "cancelled", "rejected")
TAIL_BYTES: Final = 1 << 14
"""Of each rank, where the end of a job's output is asked for."""
TAIL_RANKS: Final = 8
"""Of so many ranks: each is a question, and somebody has to read it."""


class Asks(Protocol):
    """What is needed of a client."""

    def job(self, number: int) -> JobInfo:
        """One job."""
        ...

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> LogChunk:
        """A piece of its output."""
        ...


def follow(
    client: Asks, number: int, *, labelled: bool | None = None, to_its_end: bool = True
) -> Iterator[JobInfo | bytes]:
    """The job each time that it is looked at, and pieces of output in whole lines where a gang writes them.

    Args:
        client: Asks the broker.
        number: The job, which need not have started.
        labelled: Whether lines begin with `RANK: `; None: those of gangs of several nodes do.
        to_its_end: Go on until the job is over; else what there is now.

    Raises:
        InputError: it is an array; at the end, a rank's output could not be read, and the others' was told.
        BrokerUnavailableError: the broker has been away for `PATIENCE_S`.
    """
    ranks: dict[int, _Rank] = {}
    attempt, info = 0, None
    while True:
        if info is None:
            info = client.job(number)
            if info.num_tasks:
                client.read_log(number)  # refused: an array has no output of its own, and its tasks are named
        else:
            info = _patiently(client, number)
        yield info
        if info.attempt != attempt:
            yield from (rest for rank in ranks.values() if (rest := rank.rest()))
            attempt, ranks = info.attempt, {}
        label = is_gang(info) if labelled is None else labelled
        silent = True
        for rank in range(num_ranks(info) if attempt else 0):
            reader = ranks.setdefault(rank, _Rank(rank, is_labelled=label, is_gang=is_gang(info)))
            for piece in reader.new(client, number, attempt):
                silent = False
                yield piece
        if silent and (info.state in OVER or not to_its_end):
            yield from (rest for rank in ranks.values() if (rest := rank.rest()))
            unread = [f"rank {at}: {rank.unread}" for at, rank in ranks.items() if rank.unread]
            if unread:
                raise InputError("; ".join(unread))
            return
        if silent:
            time.sleep(POLL_S)


def _patiently(client: Asks, number: int) -> JobInfo:
    """The job once more, also from a broker that starts again meanwhile."""
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
    """The end of a job's output.

    Attributes:
        job: The job.
        of_rank: The last lines of each rank; of those that have written any.
        unread: Why a rank's could not be read, by rank.
        left_out: Ranks that were not asked for.
    """

    job: JobInfo
    of_rank: dict[int, list[bytes]] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.of_rank and not self.unread

    def lines(self, most: int | None = None) -> list[bytes]:
        """Its lines, rank by rank, with `RANK: ` before those of a gang.

        Args:
            most: So many at most, the last; those of a gang share them. None: all.
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


def tail(client: Asks, info: JobInfo, num_bytes: int = TAIL_BYTES) -> Tail:
    """The end of a job's output, of its first ranks; empty before it starts."""
    ranks = num_ranks(info) if info.attempt else 0
    found = Tail(info, left_out=max(ranks - TAIL_RANKS, 0))
    for rank in range(min(ranks, TAIL_RANKS)):
        try:
            chunk = client.read_log(info.job, rank=rank, offset=-num_bytes)
        except InputError as error:  # its node is down, say
            found.unread[rank] = str(error)
            continue
        lines = chunk.data.splitlines()
        if chunk.offset > 0 and len(lines) > 1:
            del lines[0]  # its beginning is not there
        if lines:
            found.of_rank[rank] = lines
    return found


def num_ranks(info: JobInfo) -> int:
    """Ranks of a job's current or last attempt: one on each node."""
    return len(info.nodes) + info.nodes_omitted


def is_gang(info: JobInfo) -> bool:
    """Whether a job has several ranks, whose lines are told apart."""
    return num_ranks(info) > 1


class _Rank:
    """How far one rank's output has been read; a gang's is told line by line."""

    def __init__(self, number: int, *, is_labelled: bool, is_gang: bool) -> None:
        self._number, self._is_gang = number, is_gang
        self._label = f"{number}: ".encode() if is_labelled else b""
        self._offset = 0
        self._line = b""
        self.unread = ""
        """Why the last piece could not be read."""

    def new(self, client: Asks, job: int, attempt: int) -> Iterator[bytes]:
        """What has come since; the end of a line that is still being written is kept back in a gang."""
        while True:
            try:
                chunk = client.read_log(job, rank=self._number, offset=self._offset)
            except (InputError, BrokerUnavailableError) as error:  # asked again at the next look
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
        """A last line that nothing ended."""
        return self._label + self._line + b"\n" if self._line else b""
