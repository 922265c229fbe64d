"""The base of a compacted journal: what its first entries came to, as a document for every version.

It is plain MessagePack, by the names of the fields below, compressed by zlib, and cut into `BasePart`
entries. A field that a reader does not know is passed over; one that is missing has its default. A change
that a reader has to know of is another `VERSION`, and `read_base` then reads the ones before too.

It holds facts and sums alone, nothing that one version's code happens to keep. What predictors know is there
as run times of jobs, from which any predictor learns anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from rlsched.broker.base.entries import (
    BasePart,
    ChosenPolicy,
    JobSubmitted,
    JobUpdated,
    MemberSet,
    QuotaSet,
)
from rlsched.broker.base.profiles import KeptProfile
from rlsched.broker.base.rows import Row
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import NodeSpec
from rlsched.errors import JournalError
from rlsched.wire.messages import DependsOn, Holding

VERSION: Final = 4
"""Version 1 had no GPUs of others, and no arrays at first; 2 no changes of what was submitted; 3 counted no
cores and no memory."""
_PART_BYTES: Final = 1 << 16
_ENCODER: Final = msgspec.msgpack.Encoder()
BASE_KIND: Final = "base_part"
"""Kind of the entries of a base."""


class LedgerNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the ledger, in its order; one that another took the place of stays, retired."""

    spec: NodeSpec
    status: str
    """up | drained | down | asleep | booting."""
    fixed_clock: bool = False


class Asks(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for; all but its GPUs is 0 in bases before version 4."""

    num_gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    gpu_types: list[str] = []

    @property
    def demand(self) -> Demand:
        """What it asks for."""
        return Demand(
            gpus=self.num_gpus,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            gpu_memory_mib=self.gpu_memory_mib,
            gpu_types=tuple(self.gpu_types),
        )


class LedgerJob(Asks, frozen=True, kw_only=True):
    """A live job in the ledger.

    Attributes:
        status: waiting | running | leaving (preempted, and its processes are still there).
        gpus: Of a running one, numbered over all nodes in their order, the first node's first.
        tenant: Its place among those that share these GPUs.
        fields: Fields of the dtype `JOB` by name (`rlsched.cluster.arrays`).
    """

    seq: int
    vc: str
    status: str
    gpus: list[int]
    fields: dict[str, float]
    tenant: int = 0


class DemandClass(Asks, frozen=True, kw_only=True):
    """What is counted of jobs that ask for as much, as `LedgerJob` does; fields of the dtype `DEMAND`."""

    burst_vc: str
    fields: dict[str, float]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted for a policy that sets dials, by partition.

    Attributes:
        counted: Fields of the dtype `COUNTED` by name.
        dial: Likewise of `DIAL`: where the dials stand.
    """

    counted: dict[str, float | list[float]]
    dial: dict[str, float]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as schedulers see it.

    Attributes:
        next_seq: The number that the next job gets in it.
        decisions: The number of the next decision.
        preemptible: Whether a job has ever come that may be preempted.
        revises: Whether bursts have been learnt from, which few orders ask for.
        policy_id: Who decided; it finds its dials where they stood.
    """

    nodes: list[LedgerNode]
    jobs: list[LedgerJob]
    demands: list[DemandClass]
    vcs: list[str]
    gpu_types: list[str]
    next_seq: int
    decisions: int
    preemptible: bool
    revises: bool
    policy_id: str
    partitions: dict[str, Counted] = {}


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A job that has ended by itself, as predictors are told of it.

    Attributes:
        command: With `#` for numbers, as `rlsched.workload.predict.facts.stem` writes it.
        limit_s: nan where there was none.
        start_s: When it had its GPUs first; nan where it is not known.
        features: As in `JobSubmitted.said`; empty where none were noted.
    """

    vc: str
    user: str
    name: str
    command: str
    gpus: int
    limit_s: float
    submit_s: float
    start_s: float
    duration_s: float
    end_s: float
    features: bytes


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What predictors have seen.

    Attributes:
        ended: Jobs that have ended by themselves so far.
        run_times: (VC or `*`, GPUs or 0, count, sum of ln(seconds), of its squares), as `RunningMean` counts.
        losses: Size of job -> predictor -> loss, as the hedge counts; empty where it was not asked.
        past: The latest jobs that ended, in order.
    """

    ended: int = 0
    run_times: list[tuple[str, int, int, float, float]] = []
    losses: dict[str, dict[str, float]] = {}
    past: list[Past] = []


class BaseJob(msgspec.Struct, frozen=True, kw_only=True):
    """A live job.

    Attributes:
        submitted: The very entry, with what was said of it.
        job: `rlsched.broker.state.jobs.Job` by its fields' names, without `spec`; those at their default are
            left out.
        level: What it goes by now, with what age has added.
        barred: Whether a quota keeps it out of the queue.
        moves: (`start` or `stop`, when): when it got and lost its GPUs, as predictors are told.
        held: By whom it is held, `user` or `admin`.
        depends_on: What it still waits for.
        changed: What of it is otherwise than submitted.
    """

    submitted: JobSubmitted
    job: dict[str, Any]
    level: int
    barred: bool
    moves: list[tuple[str, float]]
    held: str = ""
    depends_on: list[DependsOn] = []
    changed: JobUpdated | None = None


class BaseArray(msgspec.Struct, frozen=True, kw_only=True):
    """A job array; of one that is over the number and the state are of interest alone.

    Attributes:
        array: `rlsched.broker.state.arrays.JobArray` by its fields' names, without `spec`.
        held, depends_on: As of a job.
    """

    submitted: JobSubmitted
    array: dict[str, Any]
    held: str = ""
    depends_on: list[DependsOn] = []


class HeldNode(msgspec.Struct, frozen=True, kw_only=True):
    """What others than this broker's jobs have of a node.

    Attributes:
        node: Its name.
        held: Each holding, and the number of the ledger's job that stands for it.
    """

    node: str
    held: list[tuple[Holding, int]]


class Charged(msgspec.Struct, frozen=True, kw_only=True):
    """What users, accounts and VCs have been charged.

    Attributes:
        usage: By user, GPU-seconds, half of it forgotten every `half_life_s`, as of `usage_at_s`.
        month: (kind, name, thousandths of a GPU x ms charged this month, up to when in Unix ms).
        weights: By user, ln of the weight of all their jobs.
    """

    half_life_s: float
    usage: dict[str, float]
    usage_at_s: float
    month: list[tuple[str, str, int, int]]
    weights: dict[str, float]
    quotas: list[QuotaSet]
    members: list[MemberSet]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that stands for the entries that are gone. Names as in `rlsched.broker.state.book.Book`.

    Attributes:
        now_s: Time of the last of them, Unix seconds.
        numbers: (first, how many) of each run of job numbers.
        nodes: `rlsched.broker.state.nodes.Node` by its fields' names, in order of registration.
        ran_on: By person, numbers of nodes that have started a job of theirs.
        held: GPUs of others, by node.
        profiles: What jobs of a kind use.
        shares: Whether GPUs are shared.
        awaited: Nodes that have not registered since the journal was restored.
        chosen: What `rlsched policy set` chose last.
    """

    now_s: float
    epoch: int
    identity: str
    last_number: int
    last_attempt: int
    highest_attempt: int
    restored_s: float | None
    taken_over: bool
    speed_energy: float
    numbers: list[tuple[int, int]]
    decided: dict[str, int]
    contested: dict[str, int]
    interventions: dict[str, int]
    outcomes: dict[str, int]
    asked_for_s: dict[str, float]
    health_failures: int
    ran_on: dict[str, list[int]]
    nodes: list[dict[str, Any]]
    jobs: list[BaseJob]
    ledger: Ledger
    charged: Charged
    learned: Learned = Learned()
    arrays: list[BaseArray] = []
    held: list[HeldNode] = []
    profiles: list[KeptProfile] = []
    shares: bool = False
    awaited: list[str] = []
    chosen: ChosenPolicy | None = None


def write_base(base: Base) -> list[BasePart]:
    """The entries of a base, in order."""
    packed = zlib.compress(_ENCODER.encode(base))
    pieces = [packed[at : at + _PART_BYTES] for at in range(0, len(packed), _PART_BYTES)]
    return [
        BasePart(
            part=number,
            parts=len(pieces),
            version=VERSION,
            epoch=base.epoch,
            cluster=base.identity,
            last_number=base.last_number,
            data=piece,
        )
        for number, piece in enumerate(pieces, 1)
    ]


def read_base(parts: Sequence[BasePart]) -> Base:
    """The base of its entries.

    Raises:
        JournalError: they are not all there, damaged, or of a later version.
    """
    if [part.part for part in parts] != list(range(1, parts[0].parts + 1)):
        raise JournalError(f"its base is not whole: expected {parts[0].parts} parts, got {len(parts)}")
    if not 1 <= parts[0].version <= VERSION:
        raise JournalError(
            f"its base is of version {parts[0].version}, this rlsched reads 1 to {VERSION}; "
            "run the rlsched that wrote it"
        )
    try:
        return msgspec.msgpack.decode(zlib.decompress(b"".join(part.data for part in parts)), type=Base)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalError(f"its base is damaged: {error}") from error


def base_at_the_head(rows: Iterable[Row]) -> Base | None:
    """The base that a journal begins with; None: it has all of its entries.

    Raises:
        JournalError: it is not whole, or damaged.
    """
    parts: list[BasePart] = []
    for row in rows:
        if not isinstance(row.entry, BasePart):
            break
        parts.append(row.entry)
        if row.entry.part == row.entry.parts:
            break
    return read_base(parts) if parts else None
