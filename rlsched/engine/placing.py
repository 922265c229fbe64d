"""Places an attempt in Slurm as the broker ordered, or stops the attempt."""

from __future__ import annotations

import logging
import math

from rlsched.engine.desk import Desk
from rlsched.engine.facts import SlurmJob
from rlsched.engine.orders import (
    HIGHEST,
    SlurmAttempt,
    SlurmKey,
    gres_of,
    has_got_signal,
    is_about_limits,
    is_about_node,
)
from rlsched.wire.messages import Ended, Launch, LaunchRefused

_log = logging.getLogger("rlsched.engine")
KILLED_EXIT_CODE = 143
RESTART_S = 2.0
"""Least time between the requeue of a job and its next start, seconds. A slurmd that has ended the job in the
same second refuses the start («already killed, do not launch batch job»), and the job fails with exit code 1.
"""


class Placing:
    """Writes attempts to Slurm, and reports attempts that cannot start.

    Args:
        desk: State that the parts of the gateway share.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def place(self, number: SlurmKey, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> None:
        """Start a held job on the nodes and GPUs of the attempt, or report why it cannot start."""
        assert self._desk.facts is not None
        nodes = [self._desk.facts.nodes.get(node) for node in attempt.nodes]
        gpus = (attempt.gpus or [])[: job.mark("g")]
        if job.depends or job.is_held_by_user:
            attempt.end = (KILLED_EXIT_CODE, "node_stopped", None)
            return
        types = nodes[0].types if nodes[0] is not None else []
        exact = bool(job.mark("x")) and bool(types)
        numbers = "+".join(map(str, gpus))
        if exact and job.gpus_asked and (job.marks or {}).get("i") != numbers:
            self._clear(attempt, job, now_s)
            return
        why = ""
        if any(node is None for node in nodes):
            why = "Slurm no longer has this node"
        elif any(sorted(order.gpus) != attempt.gpus for order in attempt.orders.values()):
            why = "Slurm gives a gang the same GPU numbers on every node"
        if why:
            self._refuse_or_end(number, attempt, why)
            return
        if job.restarts and now_s - job.submit_s < RESTART_S:
            return
        if attempt.placed_s is None:
            attempt.restarts, attempt.first_placed_s = job.restarts, now_s
        attempt.placed_s = now_s
        marks = {**(job.marks or {}), **self._said(number, attempt)}
        marks.pop("k", None)
        if exact:
            marks |= {"t": "1", "i": numbers}
        gres = gres_of(types, gpus) if exact else ""
        freq = HIGHEST if marks.pop("f", "") else ""
        if attempt.sm_clock_mhz:
            freq = marks["f"] = str(attempt.sm_clock_mhz)
        self._desk.writer.place(job.key, marks, attempt.nodes, gres, freq=freq, again=job.restarts > 0)

    def _clear(self, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> None:
        """Remove a job's earlier GPU request, because Slurm would add the new GPUs to this request."""
        assert self._desk.facts is not None
        last_s = max(attempt.cleared_s, attempt.placed_s or attempt.cleared_s)
        if now_s - attempt.first_placed_s >= self._desk.times.start_s:
            attempt.placed_s = now_s
            self._desk.leave(job, "placed")
        elif self._desk.facts.now_s > last_s:
            attempt.cleared_s = self._desk.cleared_s[job.key] = now_s
            self._desk.writer.clear(job.key)

    def mark(self, number: SlurmKey, attempt: SlurmAttempt, job: SlurmJob) -> None:
        """Record the attempt in the marks (AdminComment) of a job that Slurm itself has started."""
        attempt.restarts = job.restarts
        self._desk.writer.mark(job.key, {**(job.marks or {}), **self._said(number, attempt)})

    def _said(self, number: SlurmKey, attempt: SlurmAttempt) -> dict[str, str]:
        said = {"j": f"{number.job}.{number.attempt}", "r": str(attempt.restarts), "c": self._desk.identity}
        return {**said, "w": "+".join(attempt.nodes)}

    def stop(
        self, attempt: SlurmAttempt, job: SlurmJob | None, now_s: float, *, at_once: bool = False
    ) -> None:
        """End an attempt. The caller repeats the call until Slurm's facts show that the attempt has ended.

        One call can be without effect: a hold does not stop a job that has started since the last query.
        """
        if job is None or job.is_over:
            return
        assert self._desk.facts is not None
        is_old = attempt.placed_s is not None and self._desk.facts.now_s <= attempt.placed_s
        if (
            attempt.placed_s is None
            or at_once
            or now_s - attempt.placed_s >= self._desk.times.repeat_s
            or not job.runs
        ):
            attempt.placed_s = now_s
            if attempt.kill and not attempt.again:
                self._desk.writer.cancel(job.key)
            elif job.runs:
                if (
                    attempt.kill
                    and job.state != "COMPLETING"
                    and not self._is_in_grace(attempt, job, now_s, at_once=at_once)
                ):
                    self._desk.writer.requeue(job.key)
            elif not job.is_held or is_old:
                self._desk.writer.hold(job.key)
            elif attempt.kill:
                attempt.end = (KILLED_EXIT_CODE, "killed", None)
            else:
                self._give_up(attempt, job, now_s)

    def _is_in_grace(self, attempt: SlurmAttempt, job: SlurmJob, now_s: float, *, at_once: bool) -> bool:
        """Return whether a job still has time before its requeue. Send the job its own signal once.

        The mark `k` is the time of the requeue. It is written before the signal is sent, so that after a
        restart the gateway neither repeats the signal nor waits longer. If the mark is lost, it is written
        again, and the signal is sent again.
        """
        marks, is_first = job.marks or {}, attempt.requeue_s is None
        signal = marks.get("u", "")
        if not signal:
            return False
        if attempt.requeue_s is None:
            attempt.requeue_s = now_s + (attempt.grace_s if job.may_requeue else 0.0)
        if now_s >= attempt.requeue_s:
            return False
        if is_first or not (at_once or has_got_signal(job)):
            self._desk.writer.signal(job.key, signal, {**marks, "k": str(math.ceil(attempt.requeue_s))})
        return True

    def requeue_ended(self, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> None:
        """Requeue a job that failed after its signal. The caller repeats the call until the job waits."""
        if attempt.placed_s is None or now_s - attempt.placed_s >= self._desk.times.repeat_s:
            attempt.placed_s = now_s
            self._desk.writer.requeue_ended(job.key)

    def _give_up(self, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> None:
        """End an attempt whose job is held again and never ran."""
        why = f"Slurm did not start it: {attempt.giving_up}"
        number = next(number for number, one in self._desk.attempts.items() if one is attempt)
        _log.warning("Slurm's job %s is held again: %s", job.key, why)
        if is_about_limits(attempt.giving_up):
            self._desk.limited_until_s[job.key] = now_s + self._desk.times.limited_s
        if is_about_node(attempt.giving_up):
            self._refuse_or_end(number, attempt, why)
        else:
            self._desk.dead.add(number)
            attempt.end = (KILLED_EXIT_CODE, "node_stopped", None)

    def _refuse_or_end(self, number: SlurmKey, attempt: SlurmAttempt, why: str) -> None:
        """Report that an attempt cannot start or, if the broker considers it running, that it has ended."""
        self._desk.dead.add(number)
        if attempt.told or not attempt.orders:
            attempt.end = (KILLED_EXIT_CODE, "node_stopped", None)
        else:
            del self._desk.attempts[number]
            self.refuse(attempt.nodes[0], attempt.orders[0], why, for_now=True)

    def refuse(self, node: str, order: Launch, why: str, *, for_now: bool = False) -> None:
        """Report to the broker that an order cannot be carried out."""
        refused = LaunchRefused(
            job=order.job, attempt=order.attempt, rank=order.rank, message=why, is_for_now=for_now
        )
        self._desk.queue_message(node, refused)

    def end_unstarted(self, order: Launch, reason: str) -> Ended:
        """Return the message that a rank ended before it started."""
        return Ended(
            job=order.job,
            attempt=order.attempt,
            rank=order.rank,
            exit_code=KILLED_EXIT_CODE,
            reason=reason,
        )

    def say_never(self, node: str, job: int, attempt: int, rank: int) -> None:
        """Report to the broker the end of an attempt that never started."""
        never = Ended(job=job, attempt=attempt, rank=rank, exit_code=KILLED_EXIT_CODE, reason="killed")
        self._desk.queue_message(node, never)
