"""Attempts that run on nodes but are missing in the journal, for example after a restore from a backup.

After a restore, nodes may run attempts that began after the backup. The broker must not start a job that may
already run:

- An attempt that is missing in the journal continues. Its GPUs are not known, so its node is drained until
  the attempt ends. If an admin cancels its job, the attempt is ended.
- All nodes are drained until each node in the journal that may run jobs has registered, was declared down, or
  was removed. A queued job of the backup therefore cannot start while one of its attempts still runs.
- If the job of such an attempt is in the journal, and waits or runs elsewhere, the journal records the job as
  cancelled. The attempt continues on its node.
- New job numbers and attempt numbers begin far above all numbers that may have been assigned since the
  backup.

The first rule also applies without a restore, because a disk may lose a journal's last entries. A standby
that takes over follows all these rules, because its copy of the journal may lack the last entries.
"""

from __future__ import annotations

import logging
import math

from rlsched.broker.base.entries import JobCancelled, NodeDrained, NodeResumed, NumbersTaken
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.wire.messages import AttemptKey, AttemptReport, Kill
from rlsched.wire.states import CANCELLED, ENDED, QUEUED

MAX_STEP = 10_000_000
"""Maximum difference between a job number that a registering node reports and the last job number. Higher
reported job numbers are ignored.
"""
_log = logging.getLogger("rlsched.broker")


class UnknownAttempts:
    """Attempts that run on nodes but are missing in the journal: *unknown* attempts, with unknown ranks.

    There are none if the journal is complete. After a restore, each node that may run such attempts is
    *awaited* until it registers, or is declared down or removed.
    """

    def __init__(
        self,
        state: BrokerState,
        attempts: Launches,
        out: Outbox,
    ) -> None:
        self._state, self._attempts, self._out = state, attempts, out
        self._was_settling, self._settled_s = bool(state.awaited), 0.0
        self._drained: set[str] = set()  # nodes that are not drained again after a resume
        self._running: dict[str, dict[AttemptKey, AttemptReport]] = {}

    @property
    def is_settling(self) -> bool:
        """Whether a node is still awaited."""
        return bool(self._state.awaited)

    def settled_s(self) -> float:
        """Return the time at which the last awaited node registered after a restore, Unix seconds.

        The result is infinite while a node is awaited, and 0 if no node was ever awaited.
        """
        return math.inf if self._state.awaited else self._settled_s

    def finish_registration(self, now_s: float) -> bool:
        """Resume the drained nodes without unknown attempts if all awaited nodes have registered.

        Return True only on the first call after the last awaited node has registered.
        """
        if not self._was_settling or self._state.awaited:
            return False
        self._was_settling, self._settled_s = False, now_s
        for name in self._running:
            self._drain(name)
        return True

    def is_stranger(self, report: AttemptReport) -> bool:
        """Return whether a reported attempt is missing in the journal."""
        return not self._state.has_begun(report.job, report.attempt)

    def knows(self, node: str, key: AttemptKey) -> bool:
        """Return whether rank `key` runs on node `node`, but is missing in the journal."""
        return key in self._running.get(node, {})

    def register_reports(self, node: str, reports: list[AttemptReport]) -> set[tuple[int, int]]:
        """Handle the reports of ranks that a node sends when it registers.

        Return (job, attempt) of each attempt that runs on the node but is missing in the journal. The node
        must keep these attempts.
        """
        unknown_attempts = [report for report in reports if self.is_stranger(report)]
        if self._state.restored_s is None and not unknown_attempts and not self._running.get(node):
            return set()
        self._take_numbers(reports)
        self._running[node] = {}
        for report in unknown_attempts:
            if report.state == ENDED:
                _log.warning(
                    "node %s: rank %s (job.attempt.rank), missing in the journal, ended with exit code %s",
                    node,
                    report.key,
                    report.exit_code,
                    extra={"node": node, "job": report.job, "attempt": report.attempt, "rank": report.rank},
                )
                self._has_run(node, report)
                continue
            self._running[node][report.key] = report
            self._leave_to(node, report)
        self._drain(node)
        return {(key.job, key.attempt) for key in self._running[node]}

    def _take_numbers(self, reports: list[AttemptReport]) -> None:
        last = self._state.last_number
        highest = max((report.job for report in reports if report.job <= last + MAX_STEP), default=0)
        if highest > last:
            self._out.record(NumbersTaken(last=highest))

    def _leave_to(self, node: str, report: AttemptReport) -> None:
        """Cancel the job of an attempt that is missing in the journal, but let the attempt continue.

        The broker therefore does not start the job a second time.
        """
        job = self._state.jobs.get(report.job)
        if job is None or not job.live:
            return
        since = (
            "begun after the last entry of the journal"
            if self._state.restored_s is None
            else "begun after the backup from which the journal was restored"
        )
        why = f"attempt {report.attempt} of this job runs on node {node}, {since}; this attempt continues"
        if job.state == QUEUED:
            self._out.record(JobCancelled(job=job.number, reason=why))
        else:
            self._attempts.end(job, CANCELLED, why)

    def _has_run(self, node: str, report: AttemptReport) -> None:
        """Cancel a queued job if an attempt that is missing in the journal has ended by itself.

        Otherwise, the job would run twice.
        """
        job = self._state.jobs.get(report.job)
        if job is None or job.state != QUEUED or report.reason not in ("", "time_limit"):
            return
        why = (
            f"attempt {report.attempt} of this job has ended on node {node} with exit code "
            f"{report.exit_code}; "
            "the journal lacks this attempt"
        )
        self._out.record(JobCancelled(job=job.number, reason=why))

    def _drain(self, name: str) -> None:
        node, running = self._state.nodes[name], self._running.get(name, {})
        if node.drained_until_s == math.inf and not node.drained_reason.startswith(_MINE):
            return  # drained by an operator
        if running:
            jobs = ", ".join(map(self._state.called, sorted({key.job for key in running})))
            reason = (
                f"{self._mine()} jobs {jobs} continue (`rlsched cancel` ends them); no other jobs start here"
            )
        elif self.is_settling and (node.drained or name not in self._drained):
            self._drained.add(name)
            reason = (
                f"{self._mine()} no new jobs before all nodes have registered or are declared down "
                "(`rlsched node down`), or `rlsched node resume`"
            )
        else:
            if node.drained and node.drained_reason.startswith(_MINE):
                self._out.record(NodeResumed(name=name))
            return
        if (node.drained_until_s, node.drained_reason) != (math.inf, reason):
            self._out.record(NodeDrained(name=name, until_s=math.inf, reason=reason))

    def _mine(self) -> str:
        if self._state.restored_s is None:
            return LACKS
        return TAKEN_OVER if self._state.taken_over else _RESTORED

    def remove_ended(self, node: str, key: AttemptKey) -> None:
        """Remove a rank that is missing in the journal and has ended. `key`: the rank.

        If the node runs no other such rank, end the drain of the node.
        """
        if self._running.get(node, {}).pop(key, None) is not None:
            self._drain(node)

    def cancel(self, job: int) -> bool:
        """Order nodes to end a job's ranks that are missing in the journal. Return whether there are any."""
        found = False
        for node, running in self._running.items():
            for key in running:
                if key.job == job:
                    found = True
                    order = Kill(
                        epoch=self._state.epoch,
                        job=key.job,
                        attempt=key.attempt,
                        rank=key.rank,
                        grace_s=self._attempts.grace_s(None),
                    )
                    self._out.send(node, order)
        return found


TAKEN_OVER = "a standby took over:"
LACKS = "the journal does not know what runs here:"
_RESTORED = "the journal was restored from a backup:"
_MINE = (_RESTORED, TAKEN_OVER, LACKS)
