"""Handover of GPUs that are allocated to new jobs while processes of preempted jobs still run on them."""

from __future__ import annotations

from collections.abc import Iterable

from rlsched.broker.base.states import PREEMPTED
from rlsched.broker.state.jobs import Attempt, Job


class GpuHandover:
    """Leaving jobs, and new jobs that wait for the GPUs of leaving jobs.

    A leaving job was preempted: the ledger has given its GPUs to other jobs, but its processes still run.

    Attributes:
        emptied: New jobs that no longer wait, because no process of a leaving job is on their GPUs. The code
            that launches them clears the list.
    """

    def __init__(self) -> None:
        self.emptied: list[Job] = []
        self._leaving: dict[int, Job] = {}

    def add_leaving(self, job: Job, attempt: Attempt, decision: int, moved_for: str | None = None) -> None:
        """Register a leaving job after the decision that took its GPUs, and mark its attempt as preempted.

        If the attempt's `ending` is already set, the attempt is not changed.

        Args:
            attempt: The job's active attempt.
            decision: Sequence number of the decision that took the GPUs.
            moved_for: ID of the job that gets the GPUs, if the leaving job is moved to other GPUs; None: the
                leaving job is not moved.
        """
        self._leaving[job.number] = job
        if not attempt.ending:
            attempt.ending, attempt.charged = PREEMPTED, False
            attempt.ending_reason = f"preempted by decision {decision}"
            if moved_for is not None:
                attempt.moved = True
                attempt.ending_reason = f"moved by decision {decision} for job {moved_for}"

    def leaves(self, job: Job) -> None:
        """Register a leaving job that was read from a base (stored state). Its attempt is not changed."""
        self._leaving[job.number] = job

    def remove_leaving(self, job: Job) -> None:
        """Remove a leaving job, because its attempt has ended."""
        self._leaving.pop(job.number, None)

    def wait_for_gpus(self, job: Job, attempt: Attempt) -> bool:
        """Record the ranks of leaving jobs that must end before a new attempt can be launched.

        The attempt waits for ranks on its GPUs. If the new job or the leaving job has whole nodes
        (`exclusive`), the attempt waits for all ranks of the leaving job on the attempt's nodes. Return True
        if the attempt waits for no rank.
        """
        taken = {(rank.node, gpu) for rank in attempt.ranks for gpu in rank.gpus}
        nodes = {rank.node for rank in attempt.ranks}
        for other in self._leaving.values():
            theirs = other.active
            assert theirs is not None
            for number in theirs.live_ranks():
                rank = theirs.ranks[number]
                exclusive = job.spec.exclusive or other.spec.exclusive
                is_there = exclusive and rank.node in nodes
                if is_there or any((rank.node, gpu) in taken for gpu in rank.gpus):
                    attempt.leaving.add((other.number, number))
            if theirs.ending == PREEMPTED and any(seat[0] == other.number for seat in attempt.leaving):
                why, _, named = theirs.ending_reason.partition(" for ")
                takers = [*named.split(", "), f"job {job.called}"] if named else [f"job {job.called}"]
                theirs.ending_reason = f"{why} for {', '.join(dict.fromkeys(takers))}"
        return not attempt.leaving

    def remove_rank(self, number: int, rank: int, jobs: Iterable[Job]) -> list[Job]:
        """Record that rank `rank` of the leaving job `number` has ended. Do nothing for any other job.

        Return the new jobs in `jobs` that waited only for this rank. They are also added to `emptied`.
        """
        if number not in self._leaving:
            return []
        emptied = []
        for job in jobs:
            attempt = job.active
            if attempt is not None and (number, rank) in attempt.leaving:
                attempt.leaving.discard((number, rank))
                if not attempt.leaving:
                    emptied.append(job)
        self.emptied += emptied
        return emptied
