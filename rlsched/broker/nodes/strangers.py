"""Attempts that nodes run and a restored journal does not know.

Nodes that were there when the backup was made, and others since, may run attempts that the journal has never
heard of. None of these is ended unasked, and nothing starts that may run already:

- An attempt that a node runs and the journal never gave goes on. Its node is drained until it has ended,
  since its GPUs are not known; an admin's `cancel` ends it sooner.
- All nodes are drained until each node of the journal that may run jobs has registered, or an operator has
  declared it down or removed it. So a job of the backup's queue cannot start next to an attempt of its own.
- Where the job of such an attempt is known, and waits or runs elsewhere, it ends in the journal: it goes on
  there.
- Numbers of jobs and attempts begin far above those that may have been given since.

The first of these holds where no backup was restored, too: a journal may have lost its end, as on a disk that
does not do what it has promised.

A standby that takes over its copy of a journal goes by the same rules: the copy lacks its last entries.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from rlsched.broker.base.entries import Entry, JobCancelled, NodeDrained, NodeResumed, NumbersTaken
from rlsched.broker.nodes.attempts import Attempts
from rlsched.broker.state.book import Book
from rlsched.wire.messages import AttemptReport, Kill

MAX_STEP = 10_000_000
"""A node's word moves job numbers by so much at most."""
_log = logging.getLogger("rlsched.broker")


class Strangers:
    """Attempts that nodes run and the journal never gave; of a whole journal that never was restored, none.

    Args:
        book: What is known.
        attempts: The launch protocol.
        note: Makes a fact true and journals it.
        send: Tells a node.
    """

    def __init__(
        self,
        book: Book,
        attempts: Attempts,
        note: Callable[[Entry], None],
        send: Callable[..., None],
    ) -> None:
        self._book, self._attempts, self._note, self._send = book, attempts, note, send
        self._was_settling, self._settled_s = bool(book.awaited), 0.0
        self._drained: set[str] = set()  # a node that an operator has resumed since is not drained again
        self._running: dict[str, dict[tuple[int, int, int], AttemptReport]] = {}

    @property
    def is_settling(self) -> bool:
        """Whether a node that may run what the journal does not know has not registered yet."""
        return bool(self._book.awaited)

    def settled_s(self) -> float:
        """When the last such node registered, Unix seconds: infinite before, 0 where none was awaited."""
        return math.inf if self._book.awaited else self._settled_s

    def settle(self, now_s: float) -> bool:
        """Whether no node is awaited any more, for the first time; the drained nodes are then resumed."""
        if not self._was_settling or self._book.awaited:
            return False
        self._was_settling, self._settled_s = False, now_s
        for name in self._running:
            self._drain(name)
        return True

    def is_stranger(self, report: AttemptReport) -> bool:
        """Whether this attempt, of this cluster, began after what the journal knows."""
        return not self._book.gave(report.job, report.attempt)

    def knows(self, node: str, job: int, attempt: int, rank: int) -> bool:
        """Whether this is one of them, and goes on."""
        return (job, attempt, rank) in self._running.get(node, {})

    def reported(self, node: str, reports: list[AttemptReport]) -> set[tuple[int, int]]:
        """A node has registered: its strangers, which it is not to forget, as (job, attempt)."""
        strangers = [report for report in reports if self.is_stranger(report)]
        if self._book.restored_s is None and not strangers and not self._running.get(node):
            return set()
        self._take_numbers(reports)
        self._running[node] = {}
        for report in strangers:
            name = f"{report.job}.{report.attempt}.{report.rank}"
            if report.state == "ended":
                _log.warning(
                    "node %s: attempt %s, unknown to the journal, has ended with exit code %s",
                    node,
                    name,
                    report.exit_code,
                    extra={"node": node, "job": report.job, "attempt": report.attempt, "rank": report.rank},
                )
                self._has_run(node, report)
                continue
            self._running[node][report.job, report.attempt, report.rank] = report
            self._leave_to(node, report)
        self._drain(node)
        return {(job, attempt) for job, attempt, _ in self._running[node]}

    def _take_numbers(self, reports: list[AttemptReport]) -> None:
        last = self._book.last_number
        highest = max((report.job for report in reports if report.job <= last + MAX_STEP), default=0)
        if highest > last:
            self._note(NumbersTaken(last=highest))

    def _leave_to(self, node: str, report: AttemptReport) -> None:
        """End in the journal what it has of this job."""
        job = self._book.jobs.get(report.job)
        if job is None or not job.live:
            return
        since = (
            "begun after the last entry of the journal"
            if self._book.restored_s is None
            else "begun after the backup from which the journal was restored"
        )
        why = f"attempt {report.attempt} of it runs on node {node}, {since}; it goes on there"
        if job.state == "queued":
            self._note(JobCancelled(job=job.number, reason=why))
        else:
            self._attempts.end(job, "cancelled", why)

    def _has_run(self, node: str, report: AttemptReport) -> None:
        """Let a job not begin again that came to its end, though the journal has it in the queue."""
        job = self._book.jobs.get(report.job)
        if job is None or job.state != "queued" or report.reason not in ("", "time_limit"):
            return
        why = (
            f"attempt {report.attempt} of it has ended on node {node} with exit code {report.exit_code}; the "
            "journal that was taken up lacks that"
        )
        self._note(JobCancelled(job=job.number, reason=why))

    def _drain(self, name: str) -> None:
        node, running = self._book.nodes[name], self._running.get(name, {})
        if node.drained_until_s == math.inf and not node.drained_reason.startswith(_MINE):
            return  # an operator has said so
        if running:
            jobs = ", ".join(map(self._book.called, sorted({key[0] for key in running})))
            reason = f"{self._mine()} jobs {jobs} run on, `rlsched cancel` ends them; no others meanwhile"
        elif self.is_settling and (node.drained or name not in self._drained):
            self._drained.add(name)
            reason = (
                f"{self._mine()} no new jobs before all nodes have registered or are declared down "
                "(`rlsched node down`), or `rlsched node resume`"
            )
        else:
            if node.drained and node.drained_reason.startswith(_MINE):
                self._note(NodeResumed(name=name))
            return
        if (node.drained_until_s, node.drained_reason) != (math.inf, reason):
            self._note(NodeDrained(name=name, until_s=math.inf, reason=reason))

    def _mine(self) -> str:
        if self._book.restored_s is None:
            return LACKS
        return TAKEN_OVER if self._book.taken_over else _RESTORED

    def ended(self, node: str, job: int, attempt: int, rank: int) -> None:
        """A rank is over; it may have been a stranger."""
        if self._running.get(node, {}).pop((job, attempt, rank), None) is not None:
            self._drain(node)

    def cancel(self, job: int) -> bool:
        """End what runs under this number, which the journal does not know: whether anything does."""
        found = False
        for node, running in self._running.items():
            for number, attempt, rank in running:
                if number == job:
                    found = True
                    order = Kill(
                        epoch=self._book.epoch,
                        job=job,
                        attempt=attempt,
                        rank=rank,
                        grace_s=self._attempts.grace_s(None),
                    )
                    self._send(node, order)
        return found


TAKEN_OVER = "a standby took over:"
LACKS = "the journal does not know what runs here:"
_RESTORED = "the journal was restored from a backup:"
_MINE = (_RESTORED, TAKEN_OVER, LACKS)
