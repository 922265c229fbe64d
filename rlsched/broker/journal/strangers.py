"""What is right after a journal was restored from a backup: nodes know more than it does.

Nodes that were there when the backup was made, and others since, may run attempts that the journal has never
heard of. Nothing of that is ended unasked, and nothing starts that may run already:

- An attempt that a node runs and the journal never gave goes on. Its node is drained until it is over, since
  nobody knows its GPUs; an admin's `cancel` ends it sooner.
- Every node is drained until all fenced attempts have either been reported or have ended for want of a
  broker. So a job of the backup's queue cannot start beside an attempt of its own.
- Where such an attempt's job is known, and waits or runs elsewhere, it ends in the journal: it goes on there.
- A job that waits for a lost node (`--on-lost wait`) never runs twice: where its attempt is not reported, it
  has failed, as its end may have been told to the journal that is gone.
- Numbers of jobs and attempts begin far above those that may have been given since.

The first of these holds where no backup was restored, too: a journal may have lost its end, as on a disk that
does not do what it has promised.

A standby that takes its copy of a journal over goes by the same rules, with two differences. All is known as
soon as every node of the journal has registered, since the copy lacks its last entries alone. And a job that
must not run twice keeps its place in the queue: it is cancelled only if a node has not been back by the time
at which a restored journal would be settled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from rlsched.broker.book import Book
from rlsched.broker.jobs.attempts import Attempts
from rlsched.broker.journal.entries import Entry, JobCancelled, NodeDrained, NodeResumed, NumbersTaken
from rlsched.broker.limits import Limits
from rlsched.wire.messages import AttemptReport, Kill

MAX_STEP = 10_000_000
"""A node's word moves job numbers by so much at most."""
_log = logging.getLogger("rlsched.broker")


class Strangers:
    """Attempts that nodes run and the journal never gave; of a whole journal that never was restored, none.

    Args:
        book: What is known.
        attempts: The launch protocol.
        limits: The broker's times.
        note: Makes a fact true and journals it.
        send: Tells a node.
    """

    def __init__(
        self,
        book: Book,
        attempts: Attempts,
        limits: Limits,
        note: Callable[[Entry], None],
        send: Callable[..., None],
    ) -> None:
        self._book, self._attempts, self._limits, self._note, self._send = book, attempts, limits, note, send
        self._back: set[str] = set()  # nodes that have registered with this broker
        self._settled_s: float | None = None
        self._is_over = book.restored_s is None or not book.taken_over or book.now_s >= self._latest_s()
        self._drained: set[str] = set()  # whom an operator has resumed since is not drained again
        self._running: dict[str, dict[tuple[int, int, int], AttemptReport]] = {}

    def settled_s(self) -> float:
        """When what no node has reported is over, Unix seconds; 0 where the journal never was restored."""
        if self._book.restored_s is None:
            return 0.0
        return self._latest_s() if self._settled_s is None else self._settled_s

    def has_settled_at(self, now_s: float) -> bool:
        """Whether the last node that a standby waited for came back at this very instant."""
        return self._settled_s == now_s

    def _latest_s(self) -> float:
        longest_s = max((node.spec.lost_after_s for node in self._book.nodes.values()), default=0.0)
        return (self._book.restored_s or 0.0) + max(longest_s, self._limits.lost_after_s)

    def _all_back(self) -> bool:
        return all(not node.up or node.sleep or name in self._back for name, node in self._book.nodes.items())

    def settle(self, now_s: float) -> None:
        """After a standby took over: jobs that must not run twice, and may run on a node that is not back."""
        if self._is_over or self._settled_s is not None or now_s < self._latest_s():
            return
        self._is_over = True
        restored_s = self._book.restored_s or 0.0
        why = (
            "a standby took over, and this job, which must not run twice, may run on a node that is not back"
        )
        for job in list(self._book.job_of_seq.values()):
            if job.state == "queued" and job.spec.on_lost == "wait" and job.submit_s <= restored_s:
                self._note(JobCancelled(job=job.number, reason=why))

    def is_stranger(self, report: AttemptReport) -> bool:
        """Whether this attempt, of this cluster, began after what the journal knows."""
        return not self._book.gave(report.job, report.attempt)

    def knows(self, node: str, job: int, attempt: int, rank: int) -> bool:
        """Whether this is one of them, and goes on."""
        return (job, attempt, rank) in self._running.get(node, {})

    def reported(self, node: str, reports: list[AttemptReport], now_s: float) -> set[tuple[int, int]]:
        """A node has registered: its strangers, which it is not to forget, as (job, attempt)."""
        strangers = [report for report in reports if self.is_stranger(report)]
        if self._book.restored_s is None and not strangers and not self._running.get(node):
            return set()
        self._take_numbers(reports)
        self._running[node] = {}
        self._back.add(node)
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
        self._drain(node, now_s)
        if self._book.taken_over and not self._is_over and self._settled_s is None and self._all_back():
            self._settled_s = now_s
            for other in self._back:
                self._drain(other, now_s)
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

    def _drain(self, name: str, now_s: float) -> None:
        node, running = self._book.nodes[name], self._running.get(name, {})
        if node.drained_until_s == math.inf and not node.drained_reason.startswith(_MINE):
            return  # an operator has said so
        if running:
            jobs = ", ".join(map(self._book.called, sorted({key[0] for key in running})))
            reason = f"{self._mine()} jobs {jobs} run on, `rlsched cancel` ends them; no others meanwhile"
            until_s = math.inf
        elif now_s < self.settled_s() and (node.drained or name not in self._drained):
            self._drained.add(name)
            reason = (
                f"{self._mine()} no new jobs before all is known that still runs, or `rlsched node resume`"
            )
            until_s = self.settled_s()
        else:
            if node.drained and node.drained_reason.startswith(_MINE):
                self._note(NodeResumed(name=name))
            return
        if (node.drained_until_s, node.drained_reason) != (until_s, reason):
            self._note(NodeDrained(name=name, until_s=until_s, reason=reason))

    def _mine(self) -> str:
        if self._book.restored_s is None:
            return LACKS
        return TAKEN_OVER if self._book.taken_over else _RESTORED

    def ended(self, node: str, job: int, attempt: int, rank: int, now_s: float) -> None:
        """A rank is over; it may have been a stranger."""
        if self._running.get(node, {}).pop((job, attempt, rank), None) is not None:
            self._drain(node, now_s)

    def cancel(self, job: int) -> bool:
        """End what runs under this number, which the journal does not know: whether anything does."""
        found = False
        for node, running in self._running.items():
            for number, attempt, rank in running:
                if number == job:
                    found = True
                    self._send(node, Kill(epoch=self._book.epoch, job=job, attempt=attempt, rank=rank))
        return found


TAKEN_OVER = "a standby took over:"
LACKS = "the journal does not know what runs here:"
_RESTORED = "the journal was restored from a backup:"
_MINE = (_RESTORED, TAKEN_OVER, LACKS)
