"""The base of a compacted journal: a document with the state that the deleted entries produced.

The document is MessagePack with the field names below as keys, compressed by zlib, and stored as a sequence
of `BasePart` entries. Readers ignore unknown fields, and use the default value of a missing field. A change
that earlier readers would misread increases `VERSION`. `read_base` still reads earlier versions.

The document contains only facts and sums, and does not depend on internal structures of the code. For
predictors, it contains run times of jobs, from which any predictor can learn again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from rlsched.broker.base.entries import (
    BasePart,
    BillPriced,
    ChosenPolicy,
    EnergyPriced,
    JobSubmitted,
    JobUpdated,
    MemberSet,
    QuotaSet,
)
from rlsched.broker.base.profiles import KeptProfile
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.state.bills import PriceSums
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import NodeSpec
from rlsched.errors import JournalError
from rlsched.models.observed import LearntFactor, LearntPair
from rlsched.wire.messages import DependsOn, Holding

VERSION: Final = 4
"""Version of the document. Version 2 added GPUs held by other jobs. Version 3 added changes of submissions.
Version 4 added the requested cores and memory. The first bases of version 1 had no arrays.
"""
_PART_BYTES: Final = 1 << 16
_ENCODER: Final = msgspec.msgpack.Encoder()
BASE_KIND: Final = "base_part"
"""Value of the column `kind` of journal entries that store a part of a base."""


class LedgerNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the ledger (cluster state). A replaced node stays in the ledger and gets no jobs."""

    spec: NodeSpec
    status: str
    """up | drained | down | asleep | booting."""
    fixed_clock: bool = False
    usable_mib: dict[int, int] = {}
    """GPU index -> memory that all jobs on this GPU together can get, MiB; no entry: no limit
    (`ClusterShape.limit_gpu_memory`).
    """
    joinable_mib: dict[int, int] = {}
    """GPU index -> limit of the memory that a job may need if it is to join the jobs on this GPU, MiB
    (`ClusterShape.limit_joins`).
    """


class JobNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Requested resources of a job. Bases older than version 4 store only `num_gpus`."""

    num_gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    gpu_types: list[str] = []
    exclusive: bool = False
    preferred_types: list[str] = []
    gpu_free_mib: int = 0
    """As in `Demand`; 0 in bases of earlier versions."""

    @property
    def demand(self) -> Demand:
        """The resources as a `Demand`."""
        return Demand(
            gpus=self.num_gpus,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            gpu_memory_mib=self.gpu_memory_mib,
            gpu_free_mib=self.gpu_free_mib,
            gpu_types=tuple(self.gpu_types),
            exclusive=self.exclusive,
            preferred_types=tuple(self.preferred_types),
        )


class LedgerJob(JobNeeds, frozen=True, kw_only=True):
    """A live job in the ledger (cluster state).

    Attributes:
        seq: Sequence number of the job in the ledger.
        status: waiting | running | leaving (preempted, with processes that still run).
        gpus: Indexes of the running job's GPUs, counted through all nodes in node order.
        tenant: Position of the job among the jobs that share these GPUs, from 0.
        fields: Values of fields of the dtype `JOB` (`rlsched.cluster.arrays`), by field name.
    """

    seq: int
    vc: str
    status: str
    gpus: list[int]
    fields: dict[str, float]
    tenant: int = 0


class DemandClass(JobNeeds, frozen=True, kw_only=True):
    """Counters of all jobs that request the same resources.

    Attributes:
        fields: Values of fields of the dtype `DEMAND` (`rlsched.cluster.arrays`), by field name.
    """

    burst_vc: str
    fields: dict[str, float]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and dials of a partition, stored for a policy that sets dials (numbers that adjust its rule).

    Attributes:
        counted: Counters, by name: the fields of the dtype `COUNTED` (`rlsched.cluster.dials`). Journals use
            older names for some fields (`base_ledger._IN_JOURNALS`).
        dial: Positions (values) of the dials, by name: fields of the dtype `DIAL` (`rlsched.cluster.dials`).
    """

    counted: dict[str, float | list[float]]
    dial: dict[str, float]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as schedulers see it.

    Attributes:
        next_seq: Sequence number of the next job that enters the ledger.
        decisions: Sequence number of the next decision.
        preemptible: Whether a preemptible job was ever submitted.
        revises: Whether the run times of finished jobs change the predictions of waiting jobs of the same
            burst (similar jobs submitted in a row). Only a few queue orders need this.
        policy_id: ID of the policy that decided. Dial positions are restored only for the same policy.
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


class PredictorSample(msgspec.Struct, frozen=True, array_like=True):
    """A job that ended by itself, from which predictors learn.

    Attributes:
        command: Command line with `#` in place of each number (`rlsched.workload.predict.facts.stem`).
        limit_s: Time limit, seconds; nan if there was none.
        start_s: Time of the first start, Unix seconds; nan if unknown.
        features: Features of the job as bytes, as in `JobSubmitted.said`; empty if none were recorded.
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
    """Observations from which predictors learn.

    Attributes:
        ended: Number of jobs that have ended by themselves.
        run_times: Sums of `RunningMean` over ended jobs: (VC, GPUs per job, number of jobs, sum of
            ln(seconds), sum of squares of ln(seconds)). VC `*` means all VCs. 0 GPUs means jobs of any size.
        losses: Prediction loss by job size and then by predictor, from which the hedge (a weighted average of
            the predictors) gets its weights. Empty if the hedge was not used.
        past: Latest jobs that ended by themselves, in order of end time.
    """

    ended: int = 0
    run_times: list[tuple[str, int, int, float, float]] = []
    losses: dict[str, dict[str, float]] = {}
    past: list[PredictorSample] = []


class BaseJob(msgspec.Struct, frozen=True, kw_only=True):
    """A live job.

    Attributes:
        submitted: The original submission, with the prediction.
        job: Fields of `rlsched.broker.state.jobs.Job`, by name, without `spec` and default values.
        level: Current priority level, including the increase by waiting time.
        barred: Whether a quota keeps the job out of the queue.
        moves: The first start, and the latest starts and requeues, in order: (`start` or `stop`, Unix
            seconds). Predictors learn from these times.
        held: Who holds the job, `user` or `admin`; "" if the job is not held.
        depends_on: Dependencies that are not met yet.
        changed: Changes of settings since the submission.
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
    """A job array, finished or not.

    Attributes:
        submitted: The submission, with later changes.
        array: Fields of `rlsched.broker.state.arrays.JobArray`, by name, without `spec`.
        held: Who holds the array, `user` or `admin`; "" if the array is not held.
        depends_on: Dependencies that are not met yet.
    """

    submitted: JobSubmitted
    array: dict[str, Any]
    held: str = ""
    depends_on: list[DependsOn] = []


class HeldNode(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a node that the broker cannot allocate; see `rlsched.broker.state.holdings`.

    Attributes:
        node: Name of the node.
        held: Each holding (GPUs with the same user or reason), with the sequence number of its placeholder
            job, which occupies the GPUs in the ledger.
    """

    node: str
    held: list[tuple[Holding, int]]


class Charged(msgspec.Struct, frozen=True, kw_only=True):
    """Usage and limits of users, accounts and VCs.

    Attributes:
        half_life_s: Half-life of usage, seconds.
        usage: GPU-seconds by user, decayed up to the time `usage_at_s` (Unix seconds).
        month: For each party: (kind: `user`, `account` or `vc`; name; GPU time charged this month,
            thousandths of a GPU-millisecond; time up to which it is charged, Unix ms).
        weights: ln(fair-share weight) by user; the weight applies to all jobs of the user.
    """

    half_life_s: float
    usage: dict[str, float]
    usage_at_s: float
    month: list[tuple[str, str, int, int]]
    weights: dict[str, float]
    quotas: list[QuotaSet]
    members: list[MemberSet]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """State of a broker, stored in place of deleted journal entries. `Known` describes the other fields.

    Attributes:
        now_s: Time of the last deleted entry, Unix seconds.
        numbers: All job numbers, as ranges (first number, count).
        nodes: Fields of `rlsched.broker.state.nodes.Node`, by name, of each node in order of registration.
        ran_on: By user: ledger indexes of the nodes that have started a job of the user.
        held: GPUs that the broker cannot allocate, by node.
        profiles: Learnt resource use of jobs.
        shares: Whether jobs can share GPUs.
        awaited: Nodes that have not registered since the journal was restored from a backup.
        chosen: The last policy set by `rlsched policy set`.
        factors: Correction factors of workloads, learnt from pairs of jobs that shared GPUs; see
            `LearntFactor`.
        pairs: Observed speeds of pairs of workloads that shared GPUs.
        energy_price: The last journal entry about the price of electricity; None if no price was recorded.
        price_sums: Integral of this price over time.
        bill_price: The last journal entry about the series that only bills use; None if there was none.
        bill_price_sums: Integral of this series over time.
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
    factors: list[LearntFactor] = []
    pairs: list[LearntPair] = []
    energy_price: EnergyPriced | None = None
    price_sums: PriceSums = PriceSums()
    bill_price: BillPriced | None = None
    bill_price_sums: PriceSums = PriceSums()


def write_base(base: Base) -> list[BasePart]:
    """Return the journal entries that store a base, in order."""
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
    """Decode a base from its journal entries.

    Raises:
        JournalError: parts are missing, damaged, or of a later version.
    """
    if [part.part for part in parts] != list(range(1, parts[0].parts + 1)):
        raise JournalError(
            f"the journal's base is incomplete: expected {parts[0].parts} parts, got {len(parts)}"
        )
    if not 1 <= parts[0].version <= VERSION:
        raise JournalError(
            f"the journal's base has version {parts[0].version}, this rlsched reads versions 1 to {VERSION}; "
            "run the rlsched that wrote the base"
        )
    try:
        return msgspec.msgpack.decode(zlib.decompress(b"".join(part.data for part in parts)), type=Base)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalError(f"the journal's base is damaged: {error}") from error


def base_at_the_head(rows: Iterable[JournalRow]) -> Base | None:
    """Return the base with which a journal begins; None if the journal does not begin with a base.

    Raises:
        JournalError: the base is incomplete or damaged.
    """
    parts: list[BasePart] = []
    for row in rows:
        if not isinstance(row.entry, BasePart):
            break
        parts.append(row.entry)
        if row.entry.part == row.entry.parts:
            break
    return read_base(parts) if parts else None
