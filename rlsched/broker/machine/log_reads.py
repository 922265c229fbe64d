"""Reads of job output: forwards clients' requests to a job's node, and the node's answers to clients."""

from __future__ import annotations

from dataclasses import dataclass

from rlsched.broker.events import ClientAsked
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.wire.messages import FetchLog, LogChunk, LogData, ReadLog, Refused

MAX_LOG_BYTES = 1 << 16
MAX_LOG_READS = 16
"""Maximum number of unanswered requests for output per user, which protects nodes from too many requests."""
_TOO_MANY_READS = (
    f"{MAX_LOG_READS} of your output reads already wait for an answer; try again when one has arrived"
)


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
    """Clients' requests to read job output that wait for a node's answer.

    Args:
        timeout_s: Time within which a node must answer, seconds.
    """

    def __init__(
        self,
        state: BrokerState,
        timeout_s: float,
        out: Outbox,
    ) -> None:
        self._state, self._timeout_s, self._out = state, timeout_s, out
        self._waits: dict[int, _LogWait] = {}
        self._next_request = 1

    def read(self, asked: ClientAsked, wanted: ReadLog, now_s: float) -> None:
        """Request a piece of output from the job's node. The job must exist.

        Reply at once if the job has no attempt, or if the request is refused.
        """
        job = self._state.job(wanted.job)
        assert job is not None
        attempt = job.attempt
        if attempt is None:
            self._out.reply(asked.peer, asked.request, LogChunk(data=b"", offset=0, eof=not job.live))
            return
        if not 0 <= wanted.rank < len(attempt.ranks):
            self._out.reply(
                asked.peer,
                asked.request,
                Refused(
                    message=f"job {job.called} has ranks 0 to {len(attempt.ranks) - 1}, "
                    f"got rank {wanted.rank}"
                ),
            )
            return
        node = attempt.ranks[wanted.rank].node
        if not self._state.nodes[node].up:
            self._out.reply(
                asked.peer, asked.request, Refused(message=f"node {node}, which has this output, is down")
            )
            return
        if sum(wait.person == asked.by.person for wait in self._waits.values()) >= MAX_LOG_READS:
            self._out.reply(asked.peer, asked.request, Refused(message=_TOO_MANY_READS))
            return
        request, self._next_request = self._next_request, self._next_request + 1
        self._waits[request] = _LogWait(
            asked.peer, asked.by.person, asked.request, node, job.number, attempt.number, now_s
        )
        self._out.send(
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
        """Forward a node's answer to the client of request `request`; ignore it if no such request waits."""
        wait = self._waits.get(request)
        if wait is None or wait.node != node:
            return
        del self._waits[request]
        job = self._state.job(wait.job)
        assert job is not None
        last = job.attempt is not None and job.attempt.number == wait.attempt and not job.live
        self._out.reply(
            wait.peer,
            wait.request,
            LogChunk(data=data.data, offset=data.offset, eof=data.eof and last, attempt=wait.attempt),
        )

    def expire(self, now_s: float) -> None:
        """Refuse the clients' requests that a node has not answered within the time-out."""
        late = [request for request, wait in self._waits.items() if now_s - wait.asked_s >= self._timeout_s]
        for request in late:
            wait = self._waits.pop(request)
            self._out.reply(
                wait.peer, wait.request, Refused(message="the job's node did not answer; try again")
            )
