"""What a gateway knows of the jobs that it has offered, and of the attempts that it was ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rlsched.engine.facts import SlurmJob, SlurmNode
from rlsched.terminal.visible import visible
from rlsched.wire.messages import Ended, Launch, Submit

PROGRAM = "slurm"
"""First word of the command of a job that a Slurm is to start; its key and its stamp follow."""
_OF_THE_NODE = (
    "None",
    "Resources",
    "Priority",
    "ReqNodeNotAvail",
    "NodeDown",
    "PartitionDown",
    "BadConstraints",
)
"""Why Slurm does not start a released job, where that is about its nodes and not about the job."""

_LIMITS = (
    "Assoc",
    "QOS",
    "Partition",
    "MaxSubmit",
    "InvalidAccount",
    "InvalidQOS",
    "Licenses",
    "Reservation",
)
"""... and where a limit or a right is in the way, which no node changes."""


class AttemptKey(NamedTuple):
    """Of the broker."""

    job: int
    attempt: int


HIGHEST = "high"
"""As a clock, what `--gpu-freq` calls the highest."""


@dataclass(slots=True)
class Offer:
    """A held job that the broker has been told of.

    Attributes:
        stamp: Of its submission: Slurm may use a number twice.
        token: Of the broker's job; an offer after a withdrawal has another one.
        job: The broker's number; None before it has answered.
        asked_s: When it was asked last.
        not_before_s: It has refused it; asked again then.
        withdrawn: It is no longer to be had; the broker is being told.
        was_cancelled: ... while no gateway looked: its number is asked for first.
    """

    key: str
    stamp: str
    token: str
    job: int | None = None
    asked_s: float = -1e9
    not_before_s: float = 0.0
    withdrawn: bool = False
    was_cancelled: bool = False


@dataclass(slots=True)
class Attempt:
    """An attempt that the broker has ordered, or that was found at work.

    Attributes:
        key: Slurm's job.
        stamp: Of its submission.
        nodes: By rank.
        gpus: Numbers of its GPUs on each node; None: they differ by node, or Slurm chooses them.
        sm_clock_mhz: Highest SM clock of its GPUs; 0: whatever they have.
        is_found: It was found in Slurm's marks after a restart, decided and written already.
        is_sure: The broker's job is the one that stands for Slurm's job, as its offer was answered.
        orders: By rank; of an attempt that was found there are none.
        restarts: How often the job had been requeued before: one more says that this attempt is over.
        placed_s: When Slurm was told last; None: not yet.
        first_placed_s: ... and first.
        has_run: It was seen with its nodes.
        kill: It is to be over; `again`: the job is to wait, held.
        giving_up: Slurm did not start it: it is being held again, for this reason.
        end: How it ended: (exit code, reason, when).
        told: Ranks of which `Launched` was said.
        acknowledged: Ranks whose end the broker has in its journal.
        said_s: When ends were said last.
    """

    key: str
    stamp: str
    nodes: list[str]
    gpus: list[int] | None = None
    sm_clock_mhz: int = 0
    is_found: bool = False
    is_sure: bool = False
    orders: dict[int, Launch] = field(default_factory=dict)
    restarts: int = 0
    placed_s: float | None = None
    first_placed_s: float = 0.0
    has_run: bool = False
    kill: bool = False
    again: bool = False
    giving_up: str = ""
    end: tuple[int, str, float | None] | None = None
    told: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    said_s: float = -1e9

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are ordered."""
        return self.is_found or len(self.orders) == len(self.nodes)

    def is_of_another(self, job: SlurmJob) -> bool:
        """Whether the broker's job is another person's than Slurm's, as far as an order has said it."""
        return any(order.person not in ("", job.user) for order in self.orders.values())

    def ends(self, number: AttemptKey) -> list[tuple[str, Ended]]:
        """What is to be said of an end, by node; of ranks that are acknowledged it is not."""
        assert self.end is not None
        code, reason, ended_s = self.end
        return [
            (
                node,
                Ended(
                    job=number.job,
                    attempt=number.attempt,
                    rank=rank,
                    exit_code=code,
                    reason=reason,
                    ended_s=ended_s,
                ),
            )
            for rank, node in enumerate(self.nodes)
            if rank not in self.acknowledged
        ]


def is_about_node(reason: str) -> bool:
    """Whether Slurm does not start a job for want of what its nodes have."""
    return reason.startswith(_OF_THE_NODE)


def is_about_limits(reason: str) -> bool:
    """Whether a limit or a right keeps a job from starting, wherever that may be."""
    return reason.startswith(_LIMITS) and not is_about_node(reason)


def gres_of(types: list[str], gpus: list[int]) -> str:
    """`TresPerNode` of exactly these GPUs."""
    return ",".join(f"gres:gpu:{types[gpu]}:1" for gpu in gpus)


def asked_gres(job: SlurmJob) -> str:
    """`TresPerNode` as it was submitted, "" where it still has it.

    Once a job has got GPUs by their types, Slurm takes no bare number for it any more.
    """
    was_placed = "j" in (job.marks or {}) or job.mark("t")
    return "" if not job.mark("x") or was_placed else f"gres:gpu:{job.mark('g')}"


def gpus_of(job: SlurmJob, node: SlurmNode | None) -> int:
    """GPUs that the broker is to find for a job, 0 where it cannot: Slurm does then.

    A gang of several nodes fills them, as those of `--exclusive` do; others have no shape that it knows.
    """
    per_node, count = job.mark("g"), job.mark("n", 1)
    if node is None or not 0 < per_node <= node.gpus:
        return 0
    if job.is_exclusive or per_node == node.gpus:
        return count * node.gpus
    return per_node if count == 1 else 0


def submission(job: SlurmJob, token: str, stamp: str, gpus: int, *, preempts: bool) -> Submit:
    """How a held job is offered."""
    return Submit(
        token=token,
        command=[PROGRAM, job.key, stamp],
        num_gpus=gpus,
        name=visible(job.name)[:200],
        vc=job.partition,
        user=job.user,
        time_limit_s=job.time_limit_s,
        preemptible=preempts and job.may_requeue,
        lost_after_s=0.0,
    )


def is_held_for_us(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Whether a job waits for a broker's decision, and for no user's."""
    return (
        job.marks is not None
        and "s" in job.marks
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and job.is_held
        and not job.is_held_by_user
    )


def is_ordered(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Whether a job waits in a place of Slurm's own queue that the broker's queue gave it."""
    return (
        "v" in (job.marks or {})
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and not job.is_held
    )


def is_left(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Whether a job was given back to Slurm's own order, and is to be released still."""
    return (
        job.marks is not None
        and "left" in job.marks
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and job.is_held
        and not job.is_held_by_user
    )


def left(job: SlurmJob, why: str) -> dict[str, str]:
    """Marks of a job that is Slurm's own from now on."""
    kept = {name: value for name, value in (job.marks or {}).items() if name in ("g", "n", "x", "t")}
    return {**kept, "left": why}
