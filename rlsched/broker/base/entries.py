"""Facts that the journal holds. The broker's book is the result of applying them in order."""

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
    """A fact of the journal.

    Attributes:
        asks_scheduler: Whether the scheduler is called after it: for submissions, ends, changes of nodes as
            in the simulator, and changes of eligibility.
    """

    asks_scheduler: ClassVar[bool] = False


class ChosenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that `rlsched policy set` chose, complete, so that a restarted broker can use it.

    Attributes:
        policy: As TOML.
        name: Display name.
        fallback: The rule behind it, as TOML; "": the rule that the policy follows.
        fallback_name: Display name of the fallback.
        instead_of: Digest of the policy that the broker was started with; another --policy ends the choice.
    """

    policy: str
    name: str
    fallback: str = ""
    fallback_name: str = ""
    instead_of: str = ""


class BrokerStarted(Fact, frozen=True, kw_only=True, tag="broker_started"):
    """A broker opened this journal. `epoch` grows with every start; nodes obey the highest."""

    epoch: int
    cluster: str
    """Random id, constant for the life of the journal."""
    version: str
    policy: str
    fallback: str
    order: str
    speed_energy: float = 0.0
    """Weight of energy against time, 0 to 1, for jobs that give none; absent, like all facts on clocks here,
    in journals from before brokers chose clocks."""
    shares: bool = False
    """Whether jobs that allow it share GPUs, if the policy supports sharing; absent before version 7."""
    chosen: ChosenPolicy | None = None
    """The policy that `rlsched policy set` chose; None: the policy that the broker was started with."""
    goes_on: bool = False
    """Whether the choice of the start before is kept. It is not repeated: it may contain a checkpoint."""


class Restored(Fact, frozen=True, kw_only=True, tag="restored"):
    """This journal was restored from a backup that was made after the entry before this one.

    Attributes:
        epoch: Higher than any epoch that a node may have obeyed since the backup.
        last_number: Highest job number that may have been assigned since.
        last_attempt: New attempts get higher numbers.
        taken_over: Whether the source is a standby's copy, taken over while nodes were running, not a backup.
            Absent in journals from before there were standbys.
    """

    epoch: int
    last_number: int
    last_attempt: int
    taken_over: bool = False


class BasePart(Fact, frozen=True, kw_only=True, tag="base_part"):
    """Part of the base, which replaces earlier entries that were deleted; see `rlsched.broker.state.base`.

    All parts are consecutive, at the start of a journal. Concatenated, their `data` is one document.
    """

    part: int
    """Number of the part, from 1."""
    parts: int
    version: int
    """Version of the document."""
    epoch: int
    """Epoch of the last broker before; repeated here, like the next two, for tools that read damaged
    journals."""
    cluster: str
    last_number: int
    data: bytes


class NumbersTaken(Fact, frozen=True, kw_only=True, tag="numbers_taken"):
    """Job numbers up to this one are in use, as a node reported; the next one is higher."""

    last: int


class NodeUp(Fact, frozen=True, kw_only=True, tag="node_up"):
    """A node registered, or registered again."""

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
    """SM clocks that all of its GPUs support, highest first; empty if they cannot be set."""
    clocks_note: str = ""
    """Reason why the clocks cannot be set."""
    directory_id: str = ""
    """Id of the node's attempts directory; "" in journals from before nodes reported it."""
    notes: list[str] = []
    """Message for operators about the node."""
    host: str = ""
    """Address at which other nodes reach it; absent in journals from before nodes reported it."""
    capabilities: Capabilities = Capabilities()
    """Abilities of its engine; absent in journals from before there were engines other than rlsched's own."""


class NodeAway(Fact, frozen=True, kw_only=True, tag="node_away"):
    """A node is unreachable: it keeps its jobs and gets no new ones until `NodeUp`."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDown(Fact, frozen=True, kw_only=True, tag="node_down"):
    """A node is down, declared by an admin or because it did not wake: no job runs there."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDrained(Fact, frozen=True, kw_only=True, tag="node_drained"):
    """A node gets no new jobs until `NodeResumed`, due at `until_s` (Unix seconds; infinite: when an operator
    resumes it). A finite drain also ends when the node was down."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    until_s: float
    reason: str


class NodeRemoved(Fact, frozen=True, kw_only=True, tag="node_removed"):
    """An operator removed a node from the cluster, until it registers again."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeResumed(Fact, frozen=True, kw_only=True, tag="node_resumed"):
    """A drained node gets jobs again."""

    asks_scheduler: ClassVar[bool] = True
    name: str


class NodeSlept(Fact, frozen=True, kw_only=True, tag="node_slept"):
    """An idle node is powered down by the operator's command; it gets no jobs until `NodeUp`."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    off_s: float
    """Time by which it is off, Unix seconds; a message before then does not mean that it is up."""
    reason: str


class NodeWoken(Fact, frozen=True, kw_only=True, tag="node_woken"):
    """A node is powered up by the operator's command. `NodeUp` follows, or `NodeDown` on a time-out."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    resume_s: float
    """The command runs from this time on, Unix seconds."""
    until_s: float
    """Time-out, Unix seconds: the node is given up if it has not registered by then."""
    reason: str


class NodeHealth(Fact, frozen=True, kw_only=True, tag="node_health"):
    """Result of a node's own checks. While `unhealthy`, it gets no new jobs, even if resumed."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    unhealthy: str
    """Reason; "" if healthy."""


class GpusHeld(Fact, frozen=True, kw_only=True, tag="gpus_held"):
    """All GPUs of a node that are held by others than this broker's jobs; earlier holdings end."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    held: list[Holding]
    """GPUs of this broker's jobs are not included."""


class JobSubmitted(JobSettings, Fact, frozen=True, kw_only=True, tag="job_submitted"):
    """A job was submitted, with the prediction made then; later reads use it and never predict again.

    Settings that a journal does not have are from before they existed. `depends_on`: dependencies that were
    not met at submission. `rejected`: why it can never run, "" if it can.
    """

    asks_scheduler: ClassVar[bool] = True
    job: int
    predicted_s: float
    spread: float
    rejected: str = ""
    predicted_by: str = "running-mean"
    """`running-mean` or `hedge`."""
    said: bytes = b""
    """Saved fields of `Foreseen`, little-endian: forecast and each predictor's, (1 + EXPERTS, BINS) float64,
    then (FEATURES,) float32; empty if only the running mean predicts."""
    lost_after_s: float = 0.0
    """0: never. Absent in older journals: jobs from then are never lost by time."""
    held: str = ""
    """Holder until it is released, `user` or `admin`; absent in journals of version 4 and before."""
    array: int = 0
    """Array that it is a task of, see `TaskSubmitted`; absent, like the next, before version 5."""
    task: int = 0
    counted: bool = False
    """Whether the ledger counts its cores and memory; absent, like the next, before version 7."""
    profiles: dict[str, WorkloadProfile] = {}
    """Resource use learnt from similar jobs at submission, by GPU type."""


class TaskSubmitted(Fact, frozen=True, kw_only=True, tag="task_submitted"):
    """The next task of an array became a job; all other fields are as in the array's `JobSubmitted`."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    array: int
    task: int
    predicted_s: float
    spread: float
    predicted_by: str = "running-mean"
    said: bytes = b""
    """As in `JobSubmitted`."""


class JobHeld(Fact, frozen=True, kw_only=True, tag="job_held"):
    """A waiting job is held by `user` or `admin`; "": released."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    by: str


class TasksHeld(Fact, frozen=True, kw_only=True, tag="tasks_held"):
    """These tasks of an array, none of which is a job yet, are held by `user` or `admin`; "": released."""

    asks_scheduler: ClassVar[bool] = True
    array: int
    tasks: list[Tasks]
    by: str


class TasksCancelled(Fact, frozen=True, kw_only=True, tag="tasks_cancelled"):
    """These tasks of an array, none of which is a job yet, were cancelled."""

    asks_scheduler: ClassVar[bool] = True
    array: int
    tasks: list[Tasks]
    reason: str


class JobUpdated(JobChanges, Fact, frozen=True, kw_only=True, tag="job_updated", omit_defaults=True):
    """A submission was changed: of a job, or of all tasks of an array that are not jobs yet.

    Predictions stay as made at submission. `depends_on`: without dependencies that are already met.
    """

    asks_scheduler: ClassVar[bool] = True


class JobCancelled(Fact, frozen=True, kw_only=True, tag="job_cancelled"):
    """A waiting job was removed from the queue."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    reason: str


class JobsRanked(Fact, frozen=True, kw_only=True, tag="jobs_ranked"):
    """The priorities of jobs changed with the usage of users and the waiting times of jobs."""

    asks_scheduler: ClassVar[bool] = True
    ln_weights: dict[str, float]
    """By user, new ln(weight) of all their jobs, including later ones."""
    levels: dict[int, int]
    """By job, its new level."""


class Decided(Fact, frozen=True, kw_only=True, tag="decided"):
    """A decision. A `Start` allocates GPUs and begins the next attempt of its job; a `Preempt` takes a job's
    GPUs away and orders its attempt to end.

    Attributes:
        number: Decision number, the same as in its record.
        partition: Name of the partition.
        source: Source of the decision.
        action: The action taken.
        contested: Whether more than one row was legal, so that there was a choice.
        guard: Reason why the guard intervened, "" if it did not.
        marks_hold: Whether this *wait* passed over jobs that fit.
    """

    number: int
    partition: str
    source: Source
    action: Action
    contested: bool
    guard: str
    marks_hold: bool


class RankLaunched(OfRank, Fact, frozen=True, kw_only=True, tag="rank_launched"):
    """A node acknowledged that this rank's process is running."""

    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock that its GPUs are limited to; 0: no limit set."""
    clock_note: str = ""
    """Reason why the ordered clock was not set."""


class RankClocked(OfRank, Fact, frozen=True, kw_only=True, tag="rank_clocked"):
    """A node changed the SM clock of a running rank; fields as in `RankLaunched`."""

    sm_clock_mhz: int
    clock_note: str = ""


class RankEnded(OfRank, Fact, frozen=True, kw_only=True, tag="rank_ended", omit_defaults=True):
    """A rank ended: it exited, was refused, or was lost with its node."""

    exit_code: int
    reason: str
    ended_s: float | None = None
    """End time as its node reports it; None: the time of this entry."""
    ran_s: float | None = None
    """Run time as its node measured it; takes precedence over `ended_s`, which is wall-clock time."""
    usage: RankUsage | None = None
    """Resource use from its start on; absent in journals of version 6 and before."""


class AttemptEnding(Fact, frozen=True, kw_only=True, tag="attempt_ending"):
    """The remaining ranks are being ended; `outcome` is the job's state after the last of them has ended.

    Attributes:
        outcome: `queued` (another attempt), `failed` or `cancelled`.
        charged: Whether this counts against the job's retries.
        lost: Whether the attempt ends with a lost node; only several in a row count against the job.
    """

    job: int
    attempt: int
    outcome: Ending
    reason: str
    charged: bool = True
    lost: bool = False


class AttemptOver(Fact, frozen=True, kw_only=True, tag="attempt_over"):
    """All ranks ended; the GPUs are free. `outcome`: completed, failed, cancelled, or queued again."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    attempt: int
    outcome: Outcome
    exit_code: int | None
    reason: str
    gpu_memory_mib: int = 0
    """New minimum of memory for each of its GPUs: the previous GPUs were too small."""
    alone: bool = False
    """It shares no GPUs from now on: it ran out of GPU memory next to co-tenants, or ended with them by a
    fault under MPS."""


class PairSeen(Fact, frozen=True, kw_only=True, tag="pair_seen"):
    """The observed speed of a job next to its co-tenant; predictions of both workloads follow it.

    As in the simulator, the next decision uses it, and no decision is made because of it.
    """

    job: int
    attempt: int
    gpu_type: str
    """As in the ledger."""
    workload: str
    """Workload of the catalogue that represents the job."""
    partner: str
    """Workload that represents its co-tenant."""
    speed: float
    """Relative to the job without co-tenants at the same clock."""


class JobUnshared(Fact, frozen=True, kw_only=True, tag="job_unshared"):
    """A job shares no GPUs from its next start on: a co-tenant slowed it down too much."""

    job: int
    reason: str


class QuotaSet(Fact, frozen=True, kw_only=True, tag="quota_set"):
    """New set of limits of a user, an account or a VC; None: no limit."""

    asks_scheduler: ClassVar[bool] = True
    kind: PartyKind
    name: str
    """`default`: all names without a limit of their own."""
    gpus: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None


class MemberSet(Fact, frozen=True, kw_only=True, tag="member_set"):
    """A user may charge jobs to an account, or no longer may. A user's first account is the default."""

    account: str
    person: str
    member: bool


class EligibilityReviewed(Fact, frozen=True, kw_only=True, tag="eligibility_reviewed"):
    """Time passed and changed which jobs are eligible: a month began, or GPU-hours were used up."""

    asks_scheduler: ClassVar[bool] = True


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
"""Facts that set a state of a node; other facts are about jobs."""

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
    | RankEnded
    | AttemptEnding
    | AttemptOver
    | PairSeen
    | JobUnshared
    | QuotaSet
    | MemberSet
    | EligibilityReviewed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """An entry as the journal stores it."""
    return _encoder.encode(entry)


def decode_entry(payload: bytes) -> Entry:
    """Return the entry of a stored payload.

    Raises:
        JournalError: the payload is damaged.
    """
    try:
        entry: Entry = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"set_clock" in payload:
            raise JournalError(
                "a broker before this version changed the clock of a running job here (--reclock-s), which "
                "no longer exists; let that version end the jobs, then begin with a new journal"
            ) from error
        raise JournalError(f"damaged: {error}") from error
    return entry


def kind_of(entry: Entry) -> str:
    """Return the tag of an entry."""
    return str(entry.__struct_config__.tag)
