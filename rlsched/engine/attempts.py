"""Follows the attempts that the broker ordered: compares each attempt with its Slurm job at every poll."""

from __future__ import annotations

import logging

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts, SlurmJob, numbers_of
from rlsched.engine.orders import (
    PROGRAM,
    SlurmAttempt,
    SlurmKey,
    has_got_signal,
    is_about_limits,
    marks_of_left,
)
from rlsched.engine.placing import KILLED_EXIT_CODE, Placing
from rlsched.engine.steps import Say
from rlsched.wire.messages import EndedAck, Kill, Launch, Launched

_log = logging.getLogger("rlsched.engine")
VANISHED_EXIT_CODE = 137
FOREIGN_EXIT_CODE = 126
"""Exit code of a job that a user submitted directly to the broker. Only jobs submitted to Slurm can run."""


class SlurmAttempts:
    """Follows each attempt from the broker's order until the broker has acknowledged the attempt's end.

    Args:
        desk: State that the parts of the gateway share.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk, self._placing = desk, Placing(desk)

    def adopt(self, facts: Facts) -> None:
        """Add the attempts recorded in the marks (AdminComments) of Slurm's jobs, after a restart."""
        for job in facts.jobs.values():
            marks = job.marks or {}
            parts = marks.get("j", "").split(".")
            if not self._desk.is_ours(job) or len(parts) != 2 or not marks.get("w"):
                continue
            number = SlurmKey(int(parts[0]), int(parts[1]))
            if number in self._desk.attempts or number in self._desk.forgotten or number in self._desk.dead:
                continue
            self._desk.identity = self._desk.identity or marks.get("c", "")
            if marks.get("c", "") == self._desk.identity:
                self._desk.attempts[number] = SlurmAttempt(
                    job.key,
                    marks["s"],
                    marks["w"].split("+"),
                    numbers_of(marks.get("i", "").replace("+", ",")) or None,
                    is_found=True,
                    is_sure=True,
                    sm_clock_mhz=job.mark("f"),
                    restarts=job.mark("r"),
                    placed_s=facts.now_s,
                    first_placed_s=facts.now_s,
                    kill=has_got_signal(job),
                    again=has_got_signal(job),
                    requeue_s=float(job.mark("k")) if has_got_signal(job) else None,
                )

    def launch(self, node: str, order: Launch, now_s: float) -> None:
        """Handle an order from the broker to launch one rank of an attempt."""
        number = SlurmKey(order.job, order.attempt)
        known = self._desk.attempts.get(number)
        if number in self._desk.dead:
            self._placing.say_never(node, order.job, order.attempt, order.rank)
            return
        if known is None and order.job in self._desk.withdrawn:
            self._desk.queue_message(node, self._placing.end_unstarted(order, "node_stopped"))
            return
        if known is None:
            if len(order.command) != 3 or order.command[0] != PROGRAM:
                _log.warning(
                    "job %d of the broker was not submitted by this gateway; ending its attempt", order.job
                )
                known = SlurmAttempt("", "", list(order.nodes), end=(FOREIGN_EXIT_CODE, "", now_s))
            else:
                known = SlurmAttempt(
                    order.command[1], order.command[2], list(order.nodes), first_placed_s=now_s
                )
            self._desk.attempts[number] = known
        if not known.orders:
            known.gpus, known.sm_clock_mhz = sorted(order.gpus), order.sm_clock_mhz
        known.orders[order.rank] = order
        if known.end is not None:
            known.said_s = -1e9
        if (
            known.is_whole
            and known.placed_s is None
            and self._desk.facts is not None
            and not self._desk.is_away
        ):
            self._follow(number, known, now_s)

    def adopt_offered(self, key: str, now_s: float) -> None:
        """Check a Slurm job's unconfirmed attempts (not `is_sure`) after the broker answered its offer."""
        for number, attempt in list(self._desk.attempts.items()):
            if attempt.key == key and not attempt.is_sure and self._desk.facts and not self._desk.is_away:
                self._follow(number, attempt, now_s)

    def kill(self, node: str, order: Kill, now_s: float) -> None:
        """Handle an order from the broker to stop an attempt."""
        number = SlurmKey(order.job, order.attempt)
        attempt = self._desk.attempts.get(number)
        if attempt is None or (attempt.placed_s is None and not attempt.has_run):
            self._desk.dead.add(number)
            self._desk.attempts.pop(number, None)
            self._placing.say_never(node, order.job, order.attempt, order.rank)
            return
        attempt.kill, attempt.again = True, order.again or order.job in self._desk.withdrawn
        attempt.grace_s = order.grace_s
        if attempt.end is not None:
            attempt.said_s = -1e9
        elif not self._desk.is_away and self._desk.facts is not None:
            self._placing.stop(attempt, self._desk.job(attempt.key), now_s, at_once=True)

    def record_ack(self, ack: EndedAck) -> None:
        """Record that the broker has written the end of a rank to its journal."""
        number = SlurmKey(ack.job, ack.attempt)
        attempt = self._desk.attempts.get(number)
        if attempt is None or attempt.end is None:
            return
        attempt.acknowledged.add(ack.rank)
        if len(attempt.acknowledged) == len(attempt.nodes):
            del self._desk.attempts[number]
            self._desk.forgotten.add(number)

    def follow(self, now_s: float) -> None:
        """Update all attempts from the states of their jobs in Slurm."""
        for number, attempt in list(self._desk.attempts.items()):
            self._follow(number, attempt, now_s)

    def _follow(self, number: SlurmKey, attempt: SlurmAttempt, now_s: float) -> None:
        """Update an attempt from the state of its job in Slurm."""
        if attempt.end is None:
            job = self._desk.job(attempt.key)
            if job is not None and "left" in (job.marks or {}):
                attempt.end = (KILLED_EXIT_CODE, "cancelled", None)  # the job was left to Slurm
            elif job is None or (job.marks or {}).get("s") != attempt.stamp:
                self._end_lost(attempt, now_s)
            else:
                self._compare(number, attempt, job, now_s)
        if attempt.end is not None and now_s - attempt.said_s >= self._desk.times.repeat_s:
            attempt.said_s = now_s
            self._desk.out += [Say(node, ended) for node, ended in attempt.ends(number)]

    def _end_lost(self, attempt: SlurmAttempt, now_s: float) -> None:
        """End an attempt whose job Slurm no longer lists, or whose job ID another job now has."""
        _log.warning(
            "Slurm no longer lists job %s; reporting the end of its attempt to the broker", attempt.key
        )
        code, reason = (KILLED_EXIT_CODE, "killed") if attempt.kill else (VANISHED_EXIT_CODE, "vanished")
        attempt.end = (code, reason, now_s)

    def _compare(self, number: SlurmKey, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> None:
        if not attempt.is_sure:
            offered = self._desk.offered.get(attempt.key)
            if offered is None:
                offered = self._placed_as(job)
            if offered is None:
                return  # the broker has not answered the offer of this job yet
            if offered != number.job or attempt.is_of_another(job):
                _log.warning(
                    "job %d of the broker names Slurm's job %s, which the gateway offered as job %d; ending "
                    "the attempt: a user must have submitted the first job by hand",
                    number.job,
                    attempt.key,
                    offered,
                )
                attempt.end = (FOREIGN_EXIT_CODE, "", now_s)
                return
            attempt.is_sure = True
        if job.state == "PENDING" and not self._desk.places:  # Slurm has requeued it
            attempt.end = (KILLED_EXIT_CODE, "killed" if attempt.kill else "node_stopped", None)
            return
        is_this = (job.marks or {}).get("j") == f"{number.job}.{number.attempt}"
        if job.state == "FAILED" and is_this and attempt.again and has_got_signal(job):
            self._placing.requeue_ended(attempt, job, now_s)
        elif job.is_over:  # the job ended in this attempt, in a discarded attempt, or before any attempt
            self._report_end(attempt, job)
        elif job.runs and self._desk.places and not is_this:
            self._runs_otherwise(job)
        elif job.runs:
            if not is_this:
                self._placing.mark(number, attempt, job)
            if not attempt.has_run:
                _look_at_gpus(job)
            attempt.has_run = True
            self._say_launched(number, attempt)
            if attempt.kill:
                self._placing.stop(attempt, job, now_s)
        elif is_this and job.restarts > attempt.restarts:
            self._requeued(attempt, job)
        elif attempt.has_run:
            _log.warning(
                "Slurm lists job %s as pending, although the job ran before; waiting for its start", job.key
            )
            attempt.has_run, attempt.first_placed_s = False, now_s
        elif attempt.kill or attempt.giving_up:
            self._placing.stop(attempt, job, now_s)
        elif attempt.is_whole and job.is_held:
            if attempt.is_found and not self._desk.registered.issuperset(attempt.nodes):
                return  # the broker may not know this attempt yet
            if attempt.placed_s is None or now_s - attempt.placed_s >= self._desk.times.repeat_s:
                self._placing.place(number, attempt, job, now_s)
        elif not job.is_held and attempt.is_whole and self._is_refused(attempt, job, now_s):
            attempt.giving_up = job.reason or "None"
            self._placing.stop(attempt, job, now_s)

    def _placed_as(self, job: SlurmJob) -> int | None:
        """Return the number of the broker's job as which a Slurm job was placed earlier; None: never.

        After a restart, the gateway offers only held jobs again. A job that was released, or has ended, keeps
        the number in its marks, which only the gateway and admins can write.
        """
        marks = job.marks or {}
        number = marks.get("j", "").partition(".")[0]
        return int(number) if number.isdecimal() and marks.get("c") == self._desk.identity else None

    def _runs_otherwise(self, job: SlurmJob) -> None:
        """Handle a job that runs, but not as the attempt that the broker has ordered.

        A user has released the job, or a late command of a killed gateway has started an earlier attempt. The
        job continues to run; its GPUs are reported to the broker as used by another job.
        """
        started_as = (job.marks or {}).get("j", "")
        if not any(started_as == f"{one.job}.{one.attempt}" for one in self._desk.attempts):
            _log.warning(
                "Slurm's job %s runs as %s, not as an attempt that the broker has; leaving the job to Slurm",
                job.key,
                f"attempt {started_as}" if started_as else "no attempt",
            )
            self._desk.writer.mark(job.key, marks_of_left(job, "otherwise"))

    def _is_refused(self, attempt: SlurmAttempt, job: SlurmJob, now_s: float) -> bool:
        times, waits_s = self._desk.times, now_s - attempt.first_placed_s
        return waits_s >= times.start_s or (waits_s >= times.repeat_s and is_about_limits(job.reason))

    def _say_launched(self, number: SlurmKey, attempt: SlurmAttempt) -> None:
        for rank, node in enumerate(attempt.nodes):
            if rank not in attempt.told and node in self._desk.registered:
                attempt.told.add(rank)
                self._desk.queue_message(node, _launched(number, attempt, rank))

    def say_again(self) -> None:
        """Send `Launched` again for all running ranks. The method `follow` sends `Ended` again."""
        for number, attempt in self._desk.attempts.items():
            if attempt.end is None:
                for rank in sorted(attempt.told):
                    self._desk.queue_message(attempt.nodes[rank], _launched(number, attempt, rank))

    def _report_end(self, attempt: SlurmAttempt, job: SlurmJob) -> None:
        reason, code = job.end_reason, job.exit_code
        if attempt.kill and job.state == "CANCELLED":
            code, reason = KILLED_EXIT_CODE, "killed"
        elif job.state == "COMPLETED":
            code = 0
        elif code == 0:
            code = KILLED_EXIT_CODE if reason in ("cancelled", "time_limit", "node_stopped") else 1
        attempt.end = (code, reason, job.end_s or None)

    def _requeued(self, attempt: SlurmAttempt, job: SlurmJob) -> None:
        """Handle a job that waits again: the gateway, a user or Slurm has requeued it."""
        if not job.is_held:
            self._desk.writer.hold(job.key)
            return
        if attempt.kill and not attempt.again:
            self._desk.writer.cancel(job.key)
        attempt.end = (KILLED_EXIT_CODE, "killed" if attempt.kill else "node_stopped", None)


def _look_at_gpus(job: SlurmJob) -> None:
    """Log a warning if Slurm gave a job other GPUs than the broker ordered."""
    told = numbers_of((job.marks or {}).get("i", "").replace("+", ","))
    if told and job.gpus and not job.is_exclusive and any(sorted(gpus) != told for gpus in job.gpus):
        _log.warning(
            "Slurm's job %s has GPUs %s on %s, expected %s", job.key, job.gpus, ",".join(job.nodes), told
        )


def _launched(number: SlurmKey, attempt: SlurmAttempt, rank: int) -> Launched:
    return Launched(
        job=number.job, attempt=number.attempt, rank=rank, pid=0, sm_clock_mhz=attempt.sm_clock_mhz
    )
