"""The gateway's records of the jobs that it has offered and of the attempts that the broker ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rlsched.engine.facts import SlurmJob, SlurmNode
from rlsched.terminal.visible import visible
from rlsched.wire.messages import Ended, Launch, Submit

PROGRAM = "slurm"
"""First word of the command of an offered job. The Slurm job's key and stamp (time and count) follow."""
_OF_THE_NODE = (
    "None",
    "Resources",
    "Priority",
    "ReqNodeNotAvail",
    "NodeDown",
    "PartitionDown",
    "BadConstraints",
)
"""Prefixes of Slurm's pending reasons that show a problem of the nodes chosen for a released job."""

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
"""Prefixes of Slurm's pending reasons that show a limit or a missing permission."""


class SlurmKey(NamedTuple):
    """Identity of an attempt: the broker's job ID, and the number of the attempt."""

    job: int
    attempt: int


RELEASED = "released"
"""Value of the mark `left` of a job that is left to Slurm's own scheduling because no broker decided."""
REMOVED = "removed"
"""Value of the mark `left` of a job that is left to Slurm permanently because rlsched was removed."""
_KEPT = ("g", "n", "x", "t", "u")
"""Marks from the submission of a job, and `t`, that a job keeps while it is left to Slurm."""
HIGHEST = "high"
"""Name of the highest clock for `--gpu-freq`."""


@dataclass(slots=True)
class Offer:
    """A Slurm job that was offered to the broker.

    Attributes:
        stamp: Time and count of the submission; distinguishes jobs if Slurm uses an ID again.
        token: Token of the broker's job; an offer after a withdrawal has a new token.
        job: The broker's job ID; None before the broker has answered.
        asked_s: Time of the last question to the broker about this offer.
        not_before_s: Earliest time of the next offer, after the broker has rejected the job.
        withdrawn: Whether the offer is being withdrawn, so that the job must not start.
        was_cancelled: Whether the job was cancelled while no gateway ran, so that the broker's job ID must be
            queried before the withdrawal.
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
class SlurmAttempt:
    """An attempt that the broker has ordered, or that was found in Slurm.

    Attributes:
        key: Key of the Slurm job.
        stamp: Time and count of the submission, as in `Offer`.
        nodes: Nodes by rank.
        gpus: Indices of the GPUs, the same on each node; None: they differ by node, or Slurm chooses them.
        sm_clock_mhz: Highest SM clock of the GPUs, MHz; 0: unchanged.
        is_found: Whether the attempt was found in the Slurm job's marks after a restart of the gateway.
        is_sure: Whether the answer to the offer has confirmed that the broker's job is this Slurm job.
        orders: The broker's `Launch` messages by rank; empty if `is_found`.
        restarts: Slurm's count of requeues at the start of the attempt. If a query shows a higher count, the
            attempt has ended.
        placed_s: Time of the last write of the placement to Slurm; None: not written yet.
        cleared_s: Time at which the gateway last removed the job's earlier GPU request.
        first_placed_s: Time of the first write of the placement to Slurm.
        has_run: Whether the facts have shown the attempt running on its nodes.
        kill: Whether the broker has ordered the end of the attempt.
        again: Whether the job is held after the attempt's end, and waits for another attempt.
        grace_s: Time that the broker gives the job between its signal and its requeue, seconds.
        requeue_s: Time from which a job with a signal of its own is requeued; None: not ordered yet.
        giving_up: Reason why Slurm did not start the attempt, while the job is being held again; else "".
        end: The attempt's end: (exit code, reason, Unix seconds).
        told: Ranks for which `Launched` was sent.
        acknowledged: Ranks for which the broker has journalled the end.
        said_s: Time at which `Ended` was last sent.
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
    cleared_s: float = -1e9
    has_run: bool = False
    kill: bool = False
    again: bool = False
    grace_s: float = 0.0
    requeue_s: float | None = None
    giving_up: str = ""
    end: tuple[int, str, float | None] | None = None
    told: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    said_s: float = -1e9

    @property
    def is_whole(self) -> bool:
        """Whether the broker's orders for all ranks have arrived."""
        return self.is_found or len(self.orders) == len(self.nodes)

    def is_of_another(self, job: SlurmJob) -> bool:
        """Return whether an order names a user who is not the owner of the Slurm job."""
        return any(order.person not in ("", job.user) for order in self.orders.values())

    def ends(self, number: SlurmKey) -> list[tuple[str, Ended]]:
        """Return (node, `Ended` message) for each rank whose end the broker has not acknowledged."""
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


def has_got_signal(job: SlurmJob) -> bool:
    """Return whether the gateway has sent a job the signal before its requeue, in the present attempt."""
    return "k" in (job.marks or {})


def is_about_node(reason: str) -> bool:
    """Return whether Slurm's reason why a released job does not start is about its nodes."""
    return reason.startswith(_OF_THE_NODE)


def is_about_limits(reason: str) -> bool:
    """Return whether Slurm's reason why a job does not start is a limit or a missing permission."""
    return reason.startswith(_LIMITS) and not is_about_node(reason)


def gres_of(types: list[str], gpus: list[int]) -> str:
    """Return the `TresPerNode` that selects exactly these GPUs. `types`: GRES type by GPU index."""
    return ",".join(f"gres:gpu:{types[gpu]}:1" for gpu in gpus)


def asked_gres(job: SlurmJob) -> str:
    """Return the `TresPerNode` that restores the GPU request that job_submit.lua removed from a job.

    "": nothing is restored. Either the request was not removed, or the gateway has written a request for GPUs
    by type. The latter stays, because Slurm would reject a new request without a type.
    """
    was_placed = ("j" in (job.marks or {}) or job.mark("t")) and job.gpus_asked
    return "" if not job.mark("x") or was_placed else f"gres:gpu:{job.mark('g')}"


def gpus_of(job: SlurmJob, node: SlurmNode | None) -> int:
    """Return the number of GPUs that the broker must allocate for a job, 0 if only Slurm can place the job.

    A gang on several nodes uses whole nodes, as with `--exclusive`; the broker supports no other shapes.
    """
    per_node, count = job.mark("g"), job.mark("n", 1)
    if node is None or not 0 < per_node <= node.gpus:
        return 0
    if job.is_exclusive or per_node == node.gpus:
        return count * node.gpus
    return per_node if count == 1 else 0


def submission(job: SlurmJob, token: str, stamp: str, gpus: int, *, preempts: bool) -> Submit:
    """Return the submission by which the gateway offers a held Slurm job to the broker."""
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
    """Return whether a job waits for a broker's decision, and is not held by its user."""
    return (
        job.marks is not None
        and "s" in job.marks
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and job.is_held
        and not job.is_held_by_user
    )


def is_ordered(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Return whether a job waits in Slurm's own queue with a nice from the broker's queue."""
    return (
        "v" in (job.marks or {})
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and not job.is_held
    )


def is_left(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Return whether a job was left to Slurm's own scheduling, but is still held.

    A job without the mark `g` was never held for a broker, so its user holds it.
    """
    return (
        job.marks is not None
        and {"left", "g"} <= job.marks.keys()
        and (not partitions or job.partition in partitions)
        and job.state == "PENDING"
        and job.is_held
        and not job.is_held_by_user
    )


def lacks_gpus(job: SlurmJob) -> bool:
    """Return whether a job has no GPU request, because job_submit.lua has removed it.

    Such a job must not start before the gateway has set or restored the request.
    """
    return bool(job.mark("x")) and not job.gpus_asked


def marks_of_left(job: SlurmJob, why: str) -> dict[str, str]:
    """Return the new marks of a job that is left to Slurm's own scheduling."""
    marks = job.marks or {}
    kept = {name: value for name, value in marks.items() if name in _KEPT}
    if why == RELEASED and "s" in marks:
        count = job.mark("o") + ("j" in marks)  # the broker may have ended the job of this offer
        kept |= {"b": marks["s"], "o": str(count)}
    return {**kept, "left": why}


def may_be_taken_back(job: SlurmJob, partitions: tuple[str, ...]) -> bool:
    """Return whether a job waits in Slurm's own queue only because no broker decided."""
    marks = job.marks or {}
    return (
        marks.get("left") == RELEASED
        and "b" in marks
        and job.partition in partitions
        and job.state == "PENDING"
        and not job.is_held
        and not job.is_held_by_user
    )


def marks_of_taken_back(job: SlurmJob, more: int) -> dict[str, str]:
    """Return the new marks of a job that is put on hold again, until a broker decides its next start.

    `more`: 1 increases the count of offers (mark `o`), so that the next offer has a new token; else 0.
    """
    kept = {name: value for name, value in (job.marks or {}).items() if name in _KEPT}
    return {**kept, "s": (job.marks or {})["b"], "o": str(job.mark("o") + more)}
