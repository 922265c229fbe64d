"""Output that a client asks for: a node is asked, and what it reads goes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlsched.broker.events import ClientAsked
from rlsched.broker.state.book import Book
from rlsched.wire.messages import BrokerToNode, ClientReply, FetchLog, LogChunk, LogData, ReadLog, Refused

MAX_LOG_BYTES = 1 << 16
MAX_LOG_READS = 16
"""Of one person's reads of output that nodes have not answered yet: more would keep a node busy with them."""
_TOO_MANY_READS = (
    f"{MAX_LOG_READS} of your reads of output wait for an answer already; ask again when one has come"
)


class SendNow(Protocol):
    """Tells a node, with a request number where an answer is expected."""

    def __call__(self, node: str, message: BrokerToNode, request: int = 0) -> None: ...


@dataclass(slots=True)
class _LogWait:
    peer: bytes
    person: str
    request: int
    node: str
    job: int
    attempt: int
    asked_s: float


class LogReads:
    """Reads that are under way.

    Args:
        book: What is known.
        timeout_s: How long a node may take.
        send: Tells a node.
        reply: Answers a client.
    """

    def __init__(
        self,
        book: Book,
        timeout_s: float,
        send: SendNow,
        reply: Callable[[bytes, int, ClientReply], None],
    ) -> None:
        self._book, self._timeout_s, self._send, self._reply = book, timeout_s, send, reply
        self._waits: dict[int, _LogWait] = {}
        self._next_request = 1

    def read(self, asked: ClientAsked, wanted: ReadLog, now_s: float) -> None:
        """Ask the job's node for a piece of its output, or say why that cannot be. The job is known."""
        job = self._book.job(wanted.job)
        assert job is not None
        attempt = job.attempt
        if attempt is None:
            self._reply(asked.peer, asked.request, LogChunk(data=b"", offset=0, eof=not job.live))
            return
        if not 0 <= wanted.rank < len(attempt.ranks):
            self._reply(
                asked.peer,
                asked.request,
                Refused(
                    message=f"job {job.called} has ranks 0 to {len(attempt.ranks) - 1}, "
                    f"got rank {wanted.rank}"
                ),
            )
            return
        node = attempt.ranks[wanted.rank].node
        if not self._book.nodes[node].up:
            self._reply(
                asked.peer, asked.request, Refused(message=f"node {node}, which has this output, is down")
            )
            return
        if sum(wait.person == asked.by.person for wait in self._waits.values()) >= MAX_LOG_READS:
            self._reply(asked.peer, asked.request, Refused(message=_TOO_MANY_READS))
            return
        request, self._next_request = self._next_request, self._next_request + 1
        self._waits[request] = _LogWait(
            asked.peer, asked.by.person, asked.request, node, job.number, attempt.number, now_s
        )
        self._send(
            node,
            FetchLog(
                job=job.number,
                attempt=attempt.number,
                rank=wanted.rank,
                offset=wanted.offset,
                max_bytes=max(1, min(wanted.max_bytes, MAX_LOG_BYTES)),
            ),
            request,
        )

    def data(self, node: str, request: int, data: LogData) -> None:
        """A node has read a piece of output. Nothing, from a node that was not asked."""
        wait = self._waits.get(request)
        if wait is None or wait.node != node:
            return
        del self._waits[request]
        job = self._book.job(wait.job)
        assert job is not None
        last = job.attempt is not None and job.attempt.number == wait.attempt and not job.live
        self._reply(
            wait.peer,
            wait.request,
            LogChunk(data=data.data, offset=data.offset, eof=data.eof and last, attempt=wait.attempt),
        )

    def expire(self, now_s: float) -> None:
        """Answer for the nodes that did not."""
        late = [request for request, wait in self._waits.items() if now_s - wait.asked_s >= self._timeout_s]
        for request in late:
            wait = self._waits.pop(request)
            self._reply(wait.peer, wait.request, Refused(message="the job's node did not answer; try again"))
