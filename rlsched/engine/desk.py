"""What the parts of a gateway share: the last look at Slurm, the attempts, and what is to be said."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from rlsched.engine.facts import Facts, SlurmJob, SlurmNode
from rlsched.engine.orders import HIGHEST, Attempt, AttemptKey, asked_gres, left
from rlsched.engine.partitions import nodes_with_gpus
from rlsched.engine.steps import Ask, Say, Times
from rlsched.engine.writer import Writer
from rlsched.wire.messages import NodeMessage


class Remembered(NamedTuple):
    """What was remembered when the broker was asked which jobs it has; see `Desk`."""

    forgotten: set[AttemptKey]
    dead: set[AttemptKey]
    withdrawn: set[int]


class Desk:
    """On it lies what more than one part of a gateway reads or writes.

    Args:
        name: Of the gateway's key; its tokens begin with it.
        cluster: Slurm's ClusterName.
        partitions: Those that are handed over.
        writer: Through which it writes.
        times: The gateway's times.
        preempts: Jobs that may be requeued are offered as preemptible.
        places: The broker says where jobs start, and they are held until then. If not, Slurm starts them by
            the order of the broker's queue.
        sm_clocks_mhz: SM clocks that Slurm can set on all of its GPUs, highest first; empty: it sets none.
        secret: What makes tokens of offers that nobody else can guess, the same after a restart.

    Attributes:
        identity: Of the broker's journal, as its last welcome said, or as a job's marks say after a restart.
        epoch: The highest that a welcome has said.
        facts: The last look at Slurm; None before the first.
        is_away: Slurm did not answer the last question.
        offered: Slurm's job -> the broker's that stands for it, as the broker has answered the offer.
        attempts: Those whose end the broker does not have yet.
        forgotten: Those that are over for the broker, or that it does not know.
        dead: Those that never start.
        registered: Nodes that the broker has welcomed.
        starting: Jobs that Slurm has started itself, and of which the broker is being told.
        limited_until_s: Jobs that a limit of Slurm's keeps from starting: until when they are not offered.
        withdrawn: Jobs that the broker is to forget: what it still orders of them ends none of Slurm's.
        out: What is to be said and asked.
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
        self.attempts: dict[AttemptKey, Attempt] = {}
        self.forgotten: set[AttemptKey] = set()
        self.dead: set[AttemptKey] = set()
        self._asked_of = Remembered(set(), set(), set())
        self.registered: set[str] = set()
        self.starting: set[str] = set()
        self.withdrawn: set[int] = set()
        self.limited_until_s: dict[str, float] = {}
        self.out: list[Say | Ask] = []

    def nodes(self, facts: Facts | None = None) -> Iterator[tuple[SlurmNode, str]]:
        """Each node that is handed over, with its partition; of the last look where none is given."""
        facts = facts or self.facts
        yield from nodes_with_gpus(facts, self.partitions).values() if facts is not None else ()

    def job(self, key: str) -> SlurmJob | None:
        """A job as the last look had it."""
        return self.facts.jobs.get(key) if self.facts is not None else None

    def is_ours(self, job: SlurmJob) -> bool:
        """Whether a job is held for the broker, or was."""
        return job.marks is not None and "s" in job.marks and job.partition in self.partitions

    def waits(self, job: SlurmJob) -> bool:
        """Whether a job waits for a decision: held for it, or in Slurm's own queue."""
        return job.state == "PENDING" and job.is_held == self.places

    def is_open(self, job: SlurmJob) -> bool:
        """Whether the broker is to have a job: it waits, or was started by Slurm itself."""
        return self.waits(job) or job.key in self.starting

    def at_work(self) -> set[str]:
        """Keys of Slurm's jobs that have an attempt."""
        return {one.key for one in self.attempts.values() if one.end is None and one.is_sure}

    def asks_for_live(self) -> None:
        """The broker is being asked which jobs it has: what is remembered by now may be too old for it."""
        self._asked_of = Remembered(set(self.forgotten), set(self.dead), set(self.withdrawn))

    def has_live(self, live: Collection[int]) -> None:
        """These are all jobs that the broker has. Nobody asks any more for attempts of others.

        Those that marks of Slurm's jobs still name are known, so that they are not taken up again.
        """
        jobs = self.facts.jobs.values() if self.facts is not None else ()
        named = {(job.marks or {}).get("j", "") for job in jobs}
        for keys, before in ((self.forgotten, self._asked_of.forgotten), (self.dead, self._asked_of.dead)):
            keys -= {one for one in before if one.job not in live and f"{one.job}.{one.attempt}" not in named}
        self.withdrawn -= self._asked_of.withdrawn.difference(live)

    def say(self, node: str, message: NodeMessage) -> None:
        """To be said for a node."""
        self.out.append(Say(node, message))

    def leave(self, job: SlurmJob, why: str) -> None:
        """Give a held job to Slurm's own order for good."""
        if self.places:
            freq = HIGHEST if job.mark("f") else ""
            self.writer.leave(job.key, left(job, why), asked_gres(job), freq=freq, again=job.restarts > 0)
        else:
            self.writer.order(job.key, job.mark("v"), left(job, why))
