"""GPUs that the ledger has given to other jobs, and that preempted jobs have not left yet."""

from __future__ import annotations

from collections.abc import Iterable

from rlsched.broker.base.states import PREEMPTED
from rlsched.broker.state.jobs import Attempt, Job


class GpuHandover:
    """Leaving jobs, and jobs that wait for their GPUs. A preempted job leaves until its attempt has ended.

    Attributes:
        emptied: Jobs whose GPUs have become empty; cleared by the code that launches them.
    """

    def __init__(self) -> None:
        self.emptied: list[Job] = []
        self._leaving: dict[int, Job] = {}

    def add_leaving(self, job: Job, attempt: Attempt, decision: int, moved_for: str | None = None) -> None:
        """Give a job's GPUs away. A job that is being ended already keeps its ending.

        `moved_for`: id of the job that it is moved for; None: it gives way to other jobs.
        """
        self._leaving[job.number] = job
        if not attempt.ending:
            attempt.ending, attempt.charged = PREEMPTED, False
            attempt.ending_reason = f"preempted by decision {decision}"
            if moved_for is not None:
                attempt.moved = True
                attempt.ending_reason = f"moved by decision {decision} for job {moved_for}"

    def leaves(self, job: Job) -> None:
        """Restore a job that is still leaving after a preemption; its attempt holds the rest."""
        self._leaving[job.number] = job

    def remove_leaving(self, job: Job) -> None:
        """Remove a job whose attempt has ended."""
        self._leaving.pop(job.number, None)

    def wait_for_gpus(self, job: Job, attempt: Attempt) -> bool:
        """Let a new attempt wait for the ranks that are still on its GPUs; returns whether there are none."""
        taken = {(rank.node, gpu) for rank in attempt.ranks for gpu in rank.gpus}
        for other in self._leaving.values():
            theirs = other.active
            assert theirs is not None
            for number in theirs.live_ranks():
                rank = theirs.ranks[number]
                if any((rank.node, gpu) in taken for gpu in rank.gpus):
                    attempt.leaving.add((other.number, number))
            if theirs.ending == PREEMPTED and any(seat[0] == other.number for seat in attempt.leaving):
                why, _, named = theirs.ending_reason.partition(" for ")
                takers = [*named.split(", "), f"job {job.called}"] if named else [f"job {job.called}"]
                theirs.ending_reason = f"{why} for {', '.join(dict.fromkeys(takers))}"
        return not attempt.leaving

    def remove_rank(self, number: int, rank: int, jobs: Iterable[Job]) -> list[Job]:
        """Remove an ended rank; returns the given jobs whose GPUs are all empty now."""
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
