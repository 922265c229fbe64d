"""Facts: the entries of the journal. A broker's state is the result of applying all facts in order."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rlsched.broker.base.profiles import WorkloadProfile
from rlsched.broker.base.states import Ending, Outcome
from rlsched.decide.actions import Action
from rlsched.decide.record import Source
from rlsched.errors import JournalError
from rlsched.wire.messages import (
    Capabilities,
    Holding,
    OfRank,
    PartyKind,
    RankUsage,
    Tasks,
)
from rlsched.wire.messages.job_settings import JobChanges, JobSettings


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the facts in the journal.

    Attributes:
        asks_scheduler: Whether the broker calls the scheduler after a fact of this class. The simulator
            calls the scheduler after the same events.
    """

    asks_scheduler: ClassVar[bool] = False


class ChosenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy set by `rlsched policy set`, stored completely, so that a restarted broker can use it.

    Attributes:
        policy: The policy as TOML.
        name: Display name of the policy.
        fallback: The policy's fallback rule as TOML; "": the rule on which the policy is based.
        fallback_name: Display name of the fallback.
        instead_of: Digest of the policy in `--policy` that this policy replaces. A broker with another
            `--policy` ignores the chosen policy.
    """

    policy: str
    name: str
    fallback: str = ""
    fallback_name: str = ""
    instead_of: str = ""


class BrokerStarted(Fact, frozen=True, kw_only=True, tag="broker_started"):
    """A broker opened this journal. `epoch` increases with every start; nodes obey only the highest epoch."""

    epoch: int
    cluster: str
    """Random ID of the cluster; the same in all entries of a journal."""
    version: str
    policy: str
    fallback: str
    order: str
    speed_energy: float = 0.0
    """Weight of energy against time, 0 to 1, for jobs that set no weight. Older journals have neither this
    field nor the fields about clocks in this module.
    """
    shares: bool = False
    """Whether jobs that permit sharing can share GPUs. Absent before journal version 7."""
    chosen: ChosenPolicy | None = None
    """The policy set by `rlsched policy set`; None: the policy in `--policy`, unless `goes_on` is True."""
    goes_on: bool = False
    """Whether the broker uses the policy that an earlier entry has in `chosen`. This entry does not repeat
    the policy, because it may contain a large checkpoint.
    """


class Restored(Fact, frozen=True, kw_only=True, tag="restored"):
    """This journal was restored from a backup, or is the copy of a standby that took over.

    The backup or copy ends with the entry before this one.

    Attributes:
        epoch: An epoch above all epochs that nodes may have obeyed since the backup.
        last_number: A job number above all job numbers that may have been assigned since the backup.
        last_attempt: An attempt number above all attempt numbers that may be in use.
        taken_over: Whether a standby took over with its copy of the journal. Absent in older journals.
    """

    epoch: int
    last_number: int
    last_attempt: int
    taken_over: bool = False


class BasePart(Fact, frozen=True, kw_only=True, tag="base_part"):
    """A part of the base, the document that stores the state after the deleted entries of a journal.

    A compacted journal begins with the parts. Their `data`, concatenated, is the document
    (`rlsched.broker.state.base`).
    """

    part: int
    """Index of this part, from 1 to `parts`."""
    parts: int
    version: int
    """Version of the document."""
    epoch: int
    """Epoch of the last broker in the deleted entries. Each part repeats `epoch`, `cluster` and
    `last_number`, for tools that read damaged journals.
    """
    cluster: str
    last_number: int
    data: bytes


class NumbersTaken(Fact, frozen=True, kw_only=True, tag="numbers_taken"):
    """A node reported that job numbers up to `last` are already in use. New jobs get higher numbers."""

    last: int


class NodeUp(Fact, frozen=True, kw_only=True, tag="node_up"):
    """A node registered, for the first time or again."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    gpus: int
    gpu_type: str
    gpu_uuids: list[str]
    cpus: int
    memory_mib: int
    vc: str
    boot_id: str
    sm_clocks_mhz: list[int] = []
    """SM clocks that all GPUs of the node support, highest first; empty if the clocks cannot be set."""
    clocks_note: str = ""
    """Reason why the node's clocks cannot be set; "" if they can."""
    directory_id: str = ""
    """ID of the node's attempts directory; "" in journals that were written before nodes reported it."""
    notes: list[str] = []
    """Messages for operators about the node."""
    host: str = ""
    """Address at which other nodes reach the node; absent in older journals."""
    capabilities: Capabilities = Capabilities()
    """Abilities of the node's engine; absent in older journals."""


class NodeAway(Fact, frozen=True, kw_only=True, tag="node_away"):
    """A node is unreachable. It keeps its jobs and gets no new jobs until `NodeUp`."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDown(Fact, frozen=True, kw_only=True, tag="node_down"):
    """A node is down: an operator declared it down, or it did not wake up. No job runs on the node."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDrained(Fact, frozen=True, kw_only=True, tag="node_drained"):
    """A node gets no new jobs until it is resumed (`NodeResumed`).

    The drain ends at `until_s`, Unix seconds, or when an operator resumes the node. A drain with a finite
    `until_s` also ends when the node goes down.
    """

    asks_scheduler: ClassVar[bool] = True
    name: str
    until_s: float
    reason: str


class NodeRemoved(Fact, frozen=True, kw_only=True, tag="node_removed"):
    """An operator removed a node from the cluster. If it registers again, it joins the cluster again."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeResumed(Fact, frozen=True, kw_only=True, tag="node_resumed"):
    """A drained node gets jobs again."""

    asks_scheduler: ClassVar[bool] = True
    name: str


class NodeSlept(Fact, frozen=True, kw_only=True, tag="node_slept"):
    """An idle node is being powered down by the suspend command. It gets no jobs until `NodeUp`.

    Under a power limit, the broker calls the scheduler, because the node's power falls. Otherwise, no job can
    start because of this fact.
    """

    name: str
    off_s: float
    """Time by which the node is off, Unix seconds. Messages received earlier do not mark the node up."""
    reason: str


class NodeWoken(Fact, frozen=True, kw_only=True, tag="node_woken"):
    """A node is being powered up by the resume command. `NodeUp` follows, or `NodeDown` after a time-out.

    The broker calls the scheduler only under a power limit, as after `NodeSlept`.
    """

    name: str
    resume_s: float
    """Earliest time at which the command runs, Unix seconds."""
    until_s: float
    """Time of the time-out, Unix seconds. If the node has not registered by then, it is marked down."""
    reason: str


class NodeHealth(Fact, frozen=True, kw_only=True, tag="node_health"):
    """Result of a node's own health checks. An unhealthy node gets no new jobs, even if it is resumed."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    unhealthy: str
    """Reason why the node is unhealthy; "" if it is healthy."""


class GpusHeld(Fact, frozen=True, kw_only=True, tag="gpus_held"):
    """Complete list of the GPUs of one node that the broker must not allocate.

    These GPUs are in use by other systems, or out of service. The fact replaces the node's previous
    `GpusHeld`.
    """

    asks_scheduler: ClassVar[bool] = True
    name: str
    held: list[Holding]
    """Groups of GPUs, each with the foreign job that uses them, or the reason why they are out of service."""


class GpuMemoryLimited(Fact, frozen=True, kw_only=True, tag="gpu_memory_limited"):
    """Processes that belong to no job use memory of a node's GPUs, so jobs can get only the rest.

    The fact replaces the node's previous `GpuMemoryLimited`. No job starts on a GPU with less memory than the
    job requests (`--gpu-memory`).
    """

    asks_scheduler: ClassVar[bool] = True
    name: str
    usable_mib: dict[int, int]
    """GPU index -> memory that all jobs on this GPU together can get, MiB; no entry: no limit."""


class JobSubmitted(JobSettings, Fact, frozen=True, kw_only=True, tag="job_submitted"):
    """A job or an array was submitted. The prediction is stored, so that a replay does not predict again.

    Settings that an older journal lacks have their default values. `depends_on`: dependencies that were not
    met at the submission. `rejected`: reason why the job can never run; "" if it can.
    """

    asks_scheduler: ClassVar[bool] = True
    job: int
    predicted_s: float
    spread: float
    rejected: str = ""
    predicted_by: str = "running-mean"
    """Predictor of the run time, `running-mean` or `hedge` (a weighted average of several predictors)."""
    said: bytes = b""
    """Predictions and features of the job (as in `SubmissionForecast`), little-endian. First (1 + EXPERTS,
    BINS) float64: the probability of each bin of run times. Row 0 is the blended prediction, and each further
    row is the prediction of one expert (a single predictor). Then (FEATURES,) float32: the features. Empty if
    only the running mean predicts.
    """
    lost_after_s: float = 0.0
    """Time on an unreachable node after which the job is lost, seconds; 0, as in older journals: never."""
    held: str = ""
    """Who holds the job, `user` or `admin`; "": it is not held. Absent before journal version 5."""
    array: int = 0
    """Job number of the array of which this job is a task; 0: the job is not in an array. `array` and `task`
    (the task number) are absent before journal version 5.
    """
    task: int = 0
    counted: bool = False
    """Whether the ledger allocates cores and memory to the job. Like `profiles`, absent before journal
    version 7.
    """
    profiles: dict[str, WorkloadProfile] = {}
    """Resource use by GPU type, learnt from similar jobs before the submission."""


class TaskSubmitted(Fact, frozen=True, kw_only=True, tag="task_submitted"):
    """The next task of an array became a job. The array's `JobSubmitted` contains the other settings."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    array: int
    task: int
    predicted_s: float
    spread: float
    predicted_by: str = "running-mean"
    said: bytes = b""
    """Predictions and features of the task, as in `JobSubmitted.said`."""


class JobHeld(Fact, frozen=True, kw_only=True, tag="job_held"):
    """A waiting job is held by `user` or `admin`; if `by` is "", the job was released."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    by: str


class TasksHeld(Fact, frozen=True, kw_only=True, tag="tasks_held"):
    """Tasks of an array that are not jobs yet were held by `user` or `admin`, or released (`by` is "")."""

    asks_scheduler: ClassVar[bool] = True
    array: int
    tasks: list[Tasks]
    by: str


class TasksCancelled(Fact, frozen=True, kw_only=True, tag="tasks_cancelled"):
    """Tasks of an array that are not jobs yet were cancelled."""

    asks_scheduler: ClassVar[bool] = True
    array: int
    tasks: list[Tasks]
    reason: str


class JobUpdated(JobChanges, Fact, frozen=True, kw_only=True, tag="job_updated", omit_defaults=True):
    """Settings of a job, or of tasks of an array that are not jobs yet, were changed.

    The predictions made at submission do not change. `depends_on` omits dependencies that are already met.
    """

    asks_scheduler: ClassVar[bool] = True


class JobCancelled(Fact, frozen=True, kw_only=True, tag="job_cancelled"):
    """A waiting job was cancelled and removed from the queue."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    reason: str


class JobsRanked(Fact, frozen=True, kw_only=True, tag="jobs_ranked"):
    """The priorities of jobs changed, because of the usage of users or the waiting times of jobs."""

    asks_scheduler: ClassVar[bool] = True
    ln_weights: dict[str, float]
    """New ln(fair-share weight) by user, for all present and later jobs of the user."""
    levels: dict[int, int]
    """New priority level by job number."""


class Decided(Fact, frozen=True, kw_only=True, tag="decided"):
    """A decision of the scheduler.

    A `Start` allocates GPUs and begins the next attempt of its job. A `Preempt` revokes the GPUs of a job and
    orders the job's attempt to end.

    Attributes:
        number: Sequence number of the decision, the same as in the decision record.
        partition: Name of the partition.
        source: Maker of the decision, for example `policy` or `guard`.
        action: The action taken.
        contested: Whether more than one action was legal.
        guard: Reason why the guard (which limits a policy) intervened; "" if it did not.
        marks_hold: Always False; earlier versions require the field.
    """

    number: int
    partition: str
    source: Source
    action: Action
    contested: bool
    guard: str
    marks_hold: bool = False


class RankLaunched(OfRank, Fact, frozen=True, kw_only=True, tag="rank_launched"):
    """A node reported that this rank's process is running."""

    pid: int
    sm_clock_mhz: int = 0
    """Limit of the SM clock of the rank's GPUs, MHz; 0: no limit is set."""
    clock_note: str = ""
    """Reason why the ordered clock was not set; "" if it was."""


class RankClocked(OfRank, Fact, frozen=True, kw_only=True, tag="rank_clocked"):
    """A node changed the SM clock limit of a running rank's GPUs; fields as in `RankLaunched`."""

    sm_clock_mhz: int
    clock_note: str = ""


class RankOutputFailed(OfRank, Fact, frozen=True, kw_only=True, tag="rank_output_failed"):
    """A node cannot write a rank's output to the output file of the job. Absent in older journals."""

    message: str


class RankEnded(OfRank, Fact, frozen=True, kw_only=True, tag="rank_ended", omit_defaults=True):
    """A rank ended: its process exited, the node refused to start it, or it was lost with its node."""

    exit_code: int
    reason: str
    ended_s: float | None = None
    """End time reported by the rank's node, Unix seconds; None: the time of this entry."""
    ran_s: float | None = None
    """Run time measured by the rank's node, seconds. If it is known, it is used instead of `ended_s`."""
    usage: RankUsage | None = None
    """Resource use of the rank during its whole run; absent before journal version 7."""


class AttemptEnding(Fact, frozen=True, kw_only=True, tag="attempt_ending"):
    """The broker has ordered the remaining ranks of an attempt to end.

    Attributes:
        outcome: State of the job after the last rank has ended: `queued` (another attempt), `failed` or
            `cancelled`.
        charged: Whether the attempt counts as a retry.
        lost: Whether the attempt ends because a node was lost, or could not start a rank. The job fails after
            too many lost attempts in a row (`rlsched.broker.nodes.launches.MAX_LOSSES`).
    """

    job: int
    attempt: int
    outcome: Ending
    reason: str
    charged: bool = True
    lost: bool = False


class AttemptOver(Fact, frozen=True, kw_only=True, tag="attempt_over"):
    """An attempt is finished: all ranks ended and the GPUs are free.

    `outcome`: new state of the job (completed, failed, cancelled, or queued again).
    """

    asks_scheduler: ClassVar[bool] = True
    job: int
    attempt: int
    outcome: Outcome
    exit_code: int | None
    reason: str
    gpu_memory_mib: int = 0
    """New memory request of the job, MiB per GPU; 0: the request is unchanged. If `alone`, the job requests
    the memory of a whole GPU of the attempt. Otherwise the job requests more than a GPU of the attempt has,
    so that it gets larger GPUs.
    """
    alone: bool = False
    """Whether the job shares no GPUs from now on. Reasons: the attempt ran out of GPU memory on shared GPUs
    or under a memory limit, or a GPU fault under MPS ended it.
    """


class PairSeen(Fact, frozen=True, kw_only=True, tag="pair_seen"):
    """The speed of a job with its co-tenant was observed. The models of speed learn it for the two workloads.

    As in the simulator, an observed speed causes no decision by itself.
    """

    job: int
    attempt: int
    gpu_type: str
    """Name of the GPU type in the ledger."""
    workload: str
    """Workload of the catalogue that models the job."""
    partner: str
    """Workload of the catalogue that models the co-tenant."""
    speed: float
    """Speed of the job relative to its speed without co-tenants at the same clock."""
    beside: int = 0
    """Job number of the co-tenant. The co-tenant's profile learns how much the co-tenant slows other jobs
    down. 0 in older journals.
    """


class GpuMemorySeen(Fact, frozen=True, kw_only=True, tag="gpu_memory_seen"):
    """A running job that may share GPUs uses more GPU memory than the ledger reserves for it.

    From now on, the ledger reserves `gpu_memory_mib` for the job, MiB on each of its GPUs.
    """

    job: int
    gpu_memory_mib: int


class JobUnshared(Fact, frozen=True, kw_only=True, tag="job_unshared"):
    """A job shares no GPUs from its next start on, because a co-tenant slowed it down too much.

    In journals of earlier versions also because a node refused to start it on shared GPUs (`JoinsLimited`).
    """

    job: int
    reason: str


class JoinsLimited(Fact, frozen=True, kw_only=True, tag="joins_limited"):
    """A node refused to start a job on shared GPUs, so the ledger limits which jobs may join the jobs there.

    The limit of a GPU ends when any job on this GPU ends. The ledger counts the memory that jobs should need,
    not the memory that their processes use. Without the limit, the broker would start the refused job, or a
    similar job, on the same GPUs again at once.
    """

    asks_scheduler: ClassVar[bool] = True
    name: str
    """The node."""
    most_mib: dict[int, int | None]
    """GPU index -> largest GPU memory that a job may need if it is to join the jobs on this GPU, MiB. -1: no
    job may join, because the GPU is out of service; None: the limit is removed.
    """


class QuotaSet(Fact, frozen=True, kw_only=True, tag="quota_set"):
    """Limits for a user, an account or a VC were set; None: no limit."""

    asks_scheduler: ClassVar[bool] = True
    kind: PartyKind
    name: str
    """Name of the user, account or VC. `default`: all names without limits of their own."""
    gpus: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None


class MemberSet(Fact, frozen=True, kw_only=True, tag="member_set"):
    """A user joined or left an account, to which its members can charge jobs.

    By default, a user's jobs are charged to the user's first account.
    """

    account: str
    person: str
    member: bool


class EligibilityReviewed(Fact, frozen=True, kw_only=True, tag="eligibility_reviewed"):
    """Jobs became eligible or ineligible: a begin time passed, a month began, or GPU-hours were used up."""

    asks_scheduler: ClassVar[bool] = True


class EnergyPriced(Fact, frozen=True, kw_only=True, tag="energy_priced"):
    """The price of electricity or the power limit changed, or deferred jobs are due for review."""

    asks_scheduler: ClassVar[bool] = True
    price: float | None
    """Price or carbon intensity, in the unit of its file; None: unknown."""
    ratio: float
    """The price relative to the mean price of the next 24 h (`rlsched.energy.relative`); 0: unknown."""
    outlook: tuple[float, ...] = ()
    """Figures about future prices, in the order of `rlsched.energy.relative.OUTLOOK`. If the tuple is empty,
    as in journals before version 9, all figures are 0.
    """
    until_s: float
    """Time when `ratio`, `limit_w` or `limit_falls` changes next, Unix seconds; infinite: not known."""
    limit_w: float | None = None
    """Power limit of the cluster, W; infinite: no limit at present; None, as in older journals: the cluster
    never has a limit.
    """
    limit_falls: tuple[tuple[float, float], ...] = ()
    """Announced falls of the limit as (Unix seconds, W), as in `rlsched.energy.limits.LimitAt`."""
    limit_soft: bool = False
    """Whether jobs without slack may exceed the limit."""
    from_s: float = 0.0
    """Start of the first hour in `ahead`, Unix seconds; 0: `ahead` and `rank` are unknown."""
    ahead: tuple[float, ...] = ()
    """Price of each of the next hours, relative to the mean price of the next 24 h
    (`rlsched.energy.relative.prices_ahead`); empty: unknown, or no jobs wait for a lower price.
    """
    rank: float = 0.0
    """Fraction of the past 7 days in which the price was lower; 0: unknown, or not read by the policy."""
    kind: str = ""
    """Bill to which the price applies, `cost` or `carbon`; "", as in older journals: unknown. `kind`,
    `currency` and `pue` are the fields of `rlsched.energy.bills.PriceUnit`.
    """
    currency: str = ""
    pue: float = 1.0
    mean_before: float | None = None
    """Mean price since the previous `EnergyPriced`; None: unknown for a part of that time. The mean differs
    from the price in that entry if the price changed while no broker ran.
    """


class BillPriced(Fact, frozen=True, kw_only=True, tag="bill_priced"):
    """The price or carbon intensity that only bills use, and that no policy follows, changed. Fields as in
    `EnergyPriced`.
    """

    price: float | None
    until_s: float
    kind: str = ""
    currency: str = ""
    pue: float = 1.0
    mean_before: float | None = None


NodeEntry = (
    NodeUp
    | NodeAway
    | NodeDown
    | NodeDrained
    | NodeResumed
    | NodeSlept
    | NodeWoken
    | NodeHealth
    | NodeRemoved
)
"""Facts that change the state of a `Node`."""

Entry = (
    BrokerStarted
    | BasePart
    | Restored
    | NumbersTaken
    | NodeUp
    | NodeAway
    | NodeDown
    | NodeDrained
    | NodeRemoved
    | NodeResumed
    | NodeSlept
    | NodeWoken
    | NodeHealth
    | GpusHeld
    | GpuMemoryLimited
    | JobSubmitted
    | TaskSubmitted
    | JobHeld
    | TasksHeld
    | TasksCancelled
    | JobUpdated
    | JobCancelled
    | JobsRanked
    | Decided
    | RankLaunched
    | RankClocked
    | RankOutputFailed
    | RankEnded
    | AttemptEnding
    | AttemptOver
    | PairSeen
    | GpuMemorySeen
    | JobUnshared
    | JoinsLimited
    | QuotaSet
    | MemberSet
    | EligibilityReviewed
    | EnergyPriced
    | BillPriced
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry as bytes for the journal."""
    return _encoder.encode(entry)


def decode_entry(payload: bytes) -> Entry:
    """Decode an entry from the bytes in the journal.

    Raises:
        JournalError: the payload is damaged.
    """
    try:
        entry: Entry = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"set_clock" in payload:
            raise JournalError(
                "a broker before this version changed the clock of a running job here (--reclock-s), but "
                "this version has no such decisions; run the earlier version until all jobs have ended, then "
                "begin a new journal"
            ) from error
        raise JournalError(f"damaged: {error}") from error
    return entry


def kind_of(entry: Entry) -> str:
    """Return the entry's tag, such as `job_submitted`."""
    return str(entry.__struct_config__.tag)
