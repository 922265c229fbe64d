"""Time limits of running jobs, which nodes enforce.

The broker sends a changed limit repeatedly until the nodes confirm it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job
from rlsched.errors import InputError
from rlsched.wire.messages import LimitTime
from rlsched.wire.states import LAUNCHING, RUNNING


class TimeLimits:
    """Time limits that nodes enforce for running ranks. After a broker restart, nodes report them again."""

    def __init__(self, state: BrokerState, out: Outbox) -> None:
        self._state, self._out = state, out
        self._goes_by: dict[int, tuple[int, dict[int, float]]] = {}  # job -> (attempt, rank -> limit in s)

    def note_enforced(self, job: Job | None, number: int, rank: int, limit_s: float | None) -> None:
        """Record the limit that a node enforces for a rank.

        Args:
            job: The rank's job; None: the rank's attempt is not current, and nothing is recorded.
            number: Number of the rank's attempt.
            rank: Index of the rank.
            limit_s: The limit, seconds; None: the node cannot change the limit, and nothing is recorded.
        """
        if job is None or limit_s is None or not limit_s > 0:
            return
        attempt, known = self._goes_by.get(job.number, (number, {}))
        known = known if attempt == number else {}
        known[rank] = limit_s
        self._goes_by[job.number] = number, known
        self.send_limit(job)

    def send_limit(self, job: Job) -> None:
        """Send a job's limit to the nodes that enforce a different limit for the job."""
        attempt = job.active
        known = self._goes_by.get(job.number)
        if attempt is None or attempt.ending or known is None or known[0] != attempt.number:
            return
        wanted_s = limit_of(job)
        for number, limit_s in known[1].items():
            rank = attempt.ranks[number]
            if limit_s != wanted_s and rank.state == RUNNING:
                order = LimitTime(
                    epoch=self._state.epoch,
                    job=job.number,
                    attempt=attempt.number,
                    rank=number,
                    limit_s=wanted_s,
                )
                self._out.send(rank.node, order)

    def late(self, job: Job) -> list[str]:
        """Return the nodes that do not enforce the job's present time limit yet."""
        attempt = job.active
        number, known = self._goes_by.get(job.number, (0, {}))
        if attempt is None or number != attempt.number:
            return []
        wanted_s = limit_of(job)
        ranks = (attempt.ranks[rank] for rank, limit_s in known.items() if limit_s != wanted_s)
        return sorted({rank.node for rank in ranks if rank.state == RUNNING})

    def check(self, job: Job, limit_s: float, *, by_admin: bool) -> None:
        """Check that the time limit of a job with GPUs can be changed.

        Args:
            job: The job.
            limit_s: New limit, seconds; infinite: the job gets no limit.
            by_admin: Whether an admin requests the change.

        Raises:
            InputError: the new limit is higher and the user is not an admin, or a node cannot change it now.
        """
        attempt = job.active
        assert attempt is not None
        now_s = limit_of(job)
        if limit_s > now_s and not by_admin:
            raise InputError(
                f"job {job.called} runs, with a time limit of {now_s:g} s: its user can lower "
                "the limit, only an admin can raise it"
            )
        number, known = self._goes_by.get(job.number, (0, {}))
        for rank in [] if attempt.leaving else attempt.live_ranks():
            name, state = attempt.ranks[rank].node, attempt.ranks[rank].state
            node = self._state.nodes[name]
            if number == attempt.number and rank in known:
                continue
            if not node.spec.capabilities.is_own:
                why = f"node {name} belongs to another engine: change the limit there"
            elif state == LAUNCHING:
                why = f"node {name} is still starting it: try again in a few seconds"
            elif node.state not in ("up", "drained"):
                why = f"node {name} is {node.state}: try again when the node is up"
            else:
                why = f"node {name} started it with an rlsched too old to change limits: update the node"
            raise InputError(f"the time limit of job {job.called} cannot change while it runs: {why}")

    def keep(self, jobs: Collection[int]) -> None:
        """Remove the limits of ended jobs if many are stored. `jobs`: job numbers of the running jobs."""
        if len(self._goes_by) > 2 * len(jobs) + 16:
            self._goes_by = {job: known for job, known in self._goes_by.items() if job in jobs}


def limit_of(job: Job) -> float:
    """Return the time limit of a job, seconds; infinite if the job has no limit."""
    return math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
