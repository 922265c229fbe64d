"""State that the parts of a gateway share: Slurm's last facts, the attempts, and outgoing messages.

Facts are the state of the Slurm cluster at one query (`Facts`). To offer a job means to submit a waiting
Slurm job to the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from rlsched.engine.facts import Facts, SlurmJob, SlurmNode
from rlsched.engine.orders import HIGHEST, SlurmAttempt, SlurmKey, asked_gres, marks_of_left
from rlsched.engine.partitions import nodes_with_gpus
from rlsched.engine.steps import Ask, Say, Times
from rlsched.engine.writer import Writer
from rlsched.wire.messages import NodeMessage


class RememberedJobs(NamedTuple):
    """Copies of `Desk.forgotten`, `dead`, `withdrawn`, made when the gateway queries the broker's jobs."""

    forgotten: set[SlurmKey]
    dead: set[SlurmKey]
    withdrawn: set[int]


class Desk:
    """The state that more than one part of a gateway reads or writes.

    Args:
        name: Name of the gateway's key; the tokens of offers begin with this name.
        cluster: Slurm's ClusterName.
        partitions: Partitions that the broker schedules.
        writer: Sends all writes to Slurm.
        times: Time-outs and intervals of the gateway.
        preempts: Whether jobs that Slurm can requeue are offered as preemptible.
        places: Whether jobs are held until the broker decides when and where they start. If not, Slurm
            starts the jobs in the order of the broker's queue.
        sm_clocks_mhz: SM clocks that Slurm can set on all GPUs, MHz, highest first; empty if Slurm sets no
            clocks.
        secret: Key from which the tokens of offers are computed, so that users cannot guess them; must be the
            same after a restart.

    Attributes:
        identity: ID of the broker's journal, from the broker's last `Welcome`; after a restart, from the
            marks (AdminComment) of a job.
        epoch: The highest epoch in a `Welcome`.
        facts: The last facts from Slurm; None before the first poll.
        is_away: Whether Slurm failed to answer the last query.
        offered: The broker's job ID, by the key of the Slurm job; from the broker's answers to offers.
        attempts: Attempts whose ends the broker has not acknowledged yet.
        forgotten: Attempts that the broker considers ended, or does not know.
        dead: Attempts that will never start, even if a late order arrives.
        registered: Nodes whose registration the broker has accepted.
        starting: Jobs that Slurm itself has started, and that are being reported to the broker.
        limited_until_s: Time until which a job is not offered because a limit of Slurm prevents its start, by
            the key of the job.
        cleared_s: Time at which the gateway removed a job's GPU request, by the key of the job. Dropped when
            newer facts arrive.
        withdrawn: The broker's IDs of withdrawn jobs: orders to end them must not end the jobs in Slurm.
        out: Outgoing messages and questions.
    """

    def __init__(
        self,
        name: str,
        cluster: str,
        partitions: tuple[str, ...],
        writer: Writer,
        times: Times,
        *,
        preempts: bool,
        places: bool = True,
        sm_clocks_mhz: tuple[int, ...] = (),
        secret: bytes = b"",
    ) -> None:
        self.secret = secret
        self.offered: dict[str, int] = {}
        self.name, self.cluster, self.partitions, self.writer = name, cluster, partitions, writer
        self.times, self.preempts, self.places = times, preempts, places
        self.sm_clocks_mhz = sm_clocks_mhz
        self.identity, self.epoch = "", 0
        self.facts: Facts | None = None
        self.is_away = False
        self.attempts: dict[SlurmKey, SlurmAttempt] = {}
        self.forgotten: set[SlurmKey] = set()
        self.dead: set[SlurmKey] = set()
        self._asked_of = RememberedJobs(set(), set(), set())
        self.registered: set[str] = set()
        self.starting: set[str] = set()
        self.cleared_s: dict[str, float] = {}
        self.withdrawn: set[int] = set()
        self.limited_until_s: dict[str, float] = {}
        self.out: list[Say | Ask] = []

    def nodes(self, facts: Facts | None = None) -> Iterator[tuple[SlurmNode, str]]:
        """Yield (node, partition) for each node that the broker schedules; `facts` None: the last facts."""
        facts = facts or self.facts
        yield from nodes_with_gpus(facts, self.partitions).values() if facts is not None else ()

    def job(self, key: str) -> SlurmJob | None:
        """Return a job from the last facts, or None."""
        return self.facts.jobs.get(key) if self.facts is not None else None

    def is_ours(self, job: SlurmJob) -> bool:
        """Return whether a job is or was held for the broker."""
        return job.marks is not None and "s" in job.marks and job.partition in self.partitions

    def waits(self, job: SlurmJob) -> bool:
        """Return whether a job waits for the broker: it is held, or, without `places`, in Slurm's queue."""
        return job.state == "PENDING" and job.is_held == self.places

    def is_open(self, job: SlurmJob) -> bool:
        """Return whether a job must be offered: it waits, or Slurm itself has started it."""
        return self.waits(job) or job.key in self.starting

    def at_work(self) -> set[str]:
        """Return the keys of Slurm's jobs with a confirmed attempt (`is_sure`) that has not ended."""
        return {one.key for one in self.attempts.values() if one.end is None and one.is_sure}

    def asks_for_live(self) -> None:
        """Copy `forgotten`, `dead` and `withdrawn`, because the gateway asks the broker for its list of jobs.

        When the list arrives, `has_live` removes only entries that are in these copies.
        """
        self._asked_of = RememberedJobs(set(self.forgotten), set(self.dead), set(self.withdrawn))

    def has_live(self, live: Collection[int]) -> None:
        """Remove the jobs that the broker no longer has from `forgotten`, `dead` and `withdrawn`.

        An entry stays if it was added after the last call of `asks_for_live`. An attempt also stays while
        the marks (AdminComment) of a Slurm job name it, because the gateway would adopt it again.

        Args:
            live: IDs of all jobs in the broker's answer.
        """
        jobs = self.facts.jobs.values() if self.facts is not None else ()
        named = {(job.marks or {}).get("j", "") for job in jobs}
        for keys, before in ((self.forgotten, self._asked_of.forgotten), (self.dead, self._asked_of.dead)):
            keys -= {one for one in before if one.job not in live and f"{one.job}.{one.attempt}" not in named}
        self.withdrawn -= self._asked_of.withdrawn.difference(live)

    def queue_message(self, node: str, message: NodeMessage) -> None:
        """Add an outgoing message for a node."""
        self.out.append(Say(node, message))

    def leave(self, job: SlurmJob, why: str) -> None:
        """Leave a job to Slurm's own scheduling, for the reason `why`.

        Do nothing if the gateway removed the job's GPU request after the last query of Slurm (`cleared_s`).
        """
        if self.facts is not None and self.facts.now_s <= self.cleared_s.get(job.key, -1e9):
            return
        if self.places:
            freq = HIGHEST if job.mark("f") else ""
            self.writer.leave(
                job.key, marks_of_left(job, why), asked_gres(job), freq=freq, again=job.restarts > 0
            )
        else:
            self.writer.order(job.key, job.mark("v"), marks_of_left(job, why))
