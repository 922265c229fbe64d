"""The facts that the journal holds. The broker's book is what applying them in order makes of nothing."""

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
    DependsOn,
    Holding,
    Launcher,
    OfRank,
    PartyKind,
    Priority,
    RankUsage,
    Share,
    Tasks,
)


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact of the journal.

    Attributes:
        asks_scheduler: Whether the scheduler is asked after it: submissions, ends, changes of nodes as in the
            simulator, and of which jobs are eligible.
    """

    asks_scheduler: ClassVar[bool] = False


class ChosenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that `rlsched policy set` chose, with all that it needs: restarts go on with it.

    Attributes:
        policy: As TOML.
        name: What it is called.
        fallback: The rule behind it, likewise; "": the one that it follows.
        fallback_name: Likewise.
        instead_of: Digest of what the broker was started with; another --policy ends the choice.
    """

    policy: str
    name: str
    fallback: str = ""
    fallback_name: str = ""
    instead_of: str = ""


class BrokerStarted(Fact, frozen=True, kw_only=True, tag="broker_started"):
    """A broker took this journal up. `epoch` grows with every start; nodes obey the highest."""

    epoch: int
    cluster: str
    """Random, the same for the whole life of the journal."""
    version: str
    policy: str
    fallback: str
    order: str
    speed_energy: float = 0.0
    """What energy counts against time for jobs that do not say it themselves, 0 to 1; absent in journals from
    before brokers chose clocks, as all about clocks here."""
    shares: bool = False
    """Jobs that may share GPUs do, where the policy says so; absent before version 7."""
    chosen: ChosenPolicy | None = None
    """The policy, where `rlsched policy set` chose it; None: the one that the broker was started with."""
    goes_on: bool = False
    """Whether the choice of the start before is kept. It is not repeated: it may contain a checkpoint."""


class Restored(Fact, frozen=True, kw_only=True, tag="restored"):
    """This journal was restored from a backup that was made after the entry before this one.

    Attributes:
        epoch: Above every epoch that a node may have obeyed since the backup.
        last_number: Above every job number that may have been given since.
        last_attempt: Attempts that begin from now on have higher numbers.
        taken_over: It is no backup but a standby's copy, taken over while nodes were at work. Absent in
            journals from before there were standbys.
    """

    epoch: int
    last_number: int
    last_attempt: int
    taken_over: bool = False


class BasePart(Fact, frozen=True, kw_only=True, tag="base_part"):
    """A part of what stands for the entries before it, which are gone; see `rlsched.broker.state.base`.

    All parts follow each other at the very beginning of a journal. Together, their `data` is one document.
    """

    part: int
    """1 for the first."""
    parts: int
    version: int
    """Of the document."""
    epoch: int
    """Of the last broker before; stands here too for those that read damaged journals, as the next two."""
    cluster: str
    last_number: int
    data: bytes


class NumbersTaken(Fact, frozen=True, kw_only=True, tag="numbers_taken"):
    """Job numbers up to this one have been given, as a node knows; the next is higher."""

    last: int


class NodeUp(Fact, frozen=True, kw_only=True, tag="node_up"):
    """A node registered, or came back."""

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
    """SM clocks that all of its GPUs can be set to, highest first; empty where they cannot be set."""
    clocks_note: str = ""
    """Why they cannot."""
    directory_id: str = ""
    """Which directory of attempts it has; "" in journals from before nodes said it."""
    notes: list[str] = []
    """What people should know of it."""
    host: str = ""
    """Where other nodes reach it; absent in journals from before nodes said it."""
    capabilities: Capabilities = Capabilities()
    """What its engine can do; absent in journals from before there were others than rlsched's own."""


class NodeAway(Fact, frozen=True, kw_only=True, tag="node_away"):
    """A node is unreachable: it keeps its jobs and gets no new ones until `NodeUp`."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDown(Fact, frozen=True, kw_only=True, tag="node_down"):
    """A node is down, by an admin's word or because it did not wake: nothing runs there."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeDrained(Fact, frozen=True, kw_only=True, tag="node_drained"):
    """A node gets no new jobs until `NodeResumed`, due at `until_s` (Unix seconds; infinite: when an operator
    says so), or, where that is finite, until it was down."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    until_s: float
    reason: str


class NodeRemoved(Fact, frozen=True, kw_only=True, tag="node_removed"):
    """An operator has taken a node out of the cluster, until it registers again."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    reason: str


class NodeResumed(Fact, frozen=True, kw_only=True, tag="node_resumed"):
    """A drained node gets jobs again."""

    asks_scheduler: ClassVar[bool] = True
    name: str


class NodeSlept(Fact, frozen=True, kw_only=True, tag="node_slept"):
    """An idle node is powered down by the operator's command, and gets no jobs until `NodeUp`."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    off_s: float
    """By then it is off, Unix seconds: what it says before does not mean that it is up."""
    reason: str


class NodeWoken(Fact, frozen=True, kw_only=True, tag="node_woken"):
    """A node is powered up by the operator's command. `NodeUp` follows; `NodeDown` where it does not come."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    resume_s: float
    """The command is run from then on, Unix seconds."""
    until_s: float
    """It is given up if it has not come by then."""
    reason: str


class NodeHealth(Fact, frozen=True, kw_only=True, tag="node_health"):
    """What a node's own checks say. While it is `unhealthy` it gets no new jobs, resumed or not."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    unhealthy: str
    """Why; "" where it is well."""


class GpusHeld(Fact, frozen=True, kw_only=True, tag="gpus_held"):
    """These are all GPUs of a node that others than this broker's jobs have; those held before are back."""

    asks_scheduler: ClassVar[bool] = True
    name: str
    held: list[Holding]
    """GPUs of a job of this broker's are not among them."""


class JobSubmitted(Fact, frozen=True, kw_only=True, tag="job_submitted"):
    """A job arrived, with the prediction that it got then; it is read ever after, and never made again.
    `rejected`: why it can never run, "" if it can."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    token: str
    command: list[str]
    num_gpus: int
    name: str
    vc: str
    user: str
    num_cpus: int
    time_limit_s: float | None
    env: dict[str, str]
    cwd: str
    predicted_s: float
    spread: float
    rejected: str = ""
    predicted_by: str = "running-mean"
    """`running-mean` or `hedge`."""
    said: bytes = b""
    """What `Foreseen` has of it, little-endian: forecast and each predictor's, (1 + EXPERTS, BINS) float64,
    then (FEATURES,) float32; empty where the running mean alone was asked."""
    preemptible: bool = False
    """Absent in journals from before brokers preempted."""
    workload: str = ""
    """A name of the catalogue of workloads, "" where unknown."""
    speed_energy: float | None = None
    """What energy counts against time for it, 0 to 1; None: what the broker says."""
    lost_after_s: float = 0.0
    """As in `Submit`, 0: never. Absent in journals from before: what ran then is never lost by time."""
    priority: Priority = "normal"
    """As it was submitted."""
    account: str = ""
    """What it is charged to beside its user; "": nothing."""
    notify: str = ""
    """What is told of it, as in `Submit`; absent in journals from before there were notices."""
    held: str = ""
    """By whom it is held until it is released, `user` or `admin`; absent, like the next two, in journals of
    version 4 and before."""
    begin_s: float | None = None
    """It waits until then, Unix seconds."""
    depends_on: list[DependsOn] = []
    """It waits for these; what had been so already is not among them."""
    tasks: list[Tasks] = []
    """It is no job but an array of these tasks; absent, like the next three, before version 5."""
    array_limit: int = 0
    """So many of them at once, at most; 0: any number."""
    array: int = 0
    """It is a task of this array, see `TaskSubmitted`."""
    task: int = 0
    launcher: Launcher = "none"
    """As in `Submit`."""
    memory_mib: int = 0
    """Host memory that it asks for; absent, like the next, before version 7."""
    counted: bool = False
    """The ledger counts its cores and its memory."""
    gpu_memory_mib: int = 0
    """As in `Submit`, like the next one."""
    gpu_types: list[str] = []
    profiles: dict[str, WorkloadProfile] = {}
    """What jobs like it have used, as it was known then, by GPU type; absent before version 7."""
    share: Share = "auto"
    """As in `Submit`; absent before version 7."""
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL, as in `Submit`; absent in journals from before jobs could ask for it."""


class TaskSubmitted(Fact, frozen=True, kw_only=True, tag="task_submitted"):
    """The next task of an array has become a job; all else is as the array's `JobSubmitted` says."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    array: int
    task: int
    predicted_s: float
    spread: float
    predicted_by: str = "running-mean"
    said: bytes = b""
    """As of `JobSubmitted`."""


class JobHeld(Fact, frozen=True, kw_only=True, tag="job_held"):
    """A waiting job is held from now on by `user` or `admin`; "": it is released."""

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
    """These tasks of an array, none of which is a job yet, never become jobs."""

    asks_scheduler: ClassVar[bool] = True
    array: int
    tasks: list[Tasks]
    reason: str


class JobUpdated(Fact, frozen=True, kw_only=True, tag="job_updated", omit_defaults=True):
    """What was submitted is otherwise from now on: of a job, or of an array all that is still to come of it.

    None: as it was. A prediction stays as it was made at the submission.
    """

    asks_scheduler: ClassVar[bool] = True
    job: int
    tasks: list[Tasks] = []
    """Of an array, these alone; none of them is a job yet."""
    name: str | None = None
    priority: Priority | None = None
    time_limit_s: float | None = None
    """Infinite: it has none."""
    begin_s: float | None = None
    depends_on: list[DependsOn] | None = None
    """It waits for these, and no longer for others; what had been so already is not among them."""
    lost_after_s: float | None = None
    share: Share | None = None
    array_limit: int | None = None
    gpu_types: list[str] | None = None
    """Empty: any."""
    grace_s: float | None = None


class JobCancelled(Fact, frozen=True, kw_only=True, tag="job_cancelled"):
    """A waiting job was taken out of the queue."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    reason: str


class JobsRanked(Fact, frozen=True, kw_only=True, tag="jobs_ranked"):
    """What users have used, and how long jobs have waited, has changed which jobs go before others."""

    asks_scheduler: ClassVar[bool] = True
    ln_weights: dict[str, float]
    """By user, ln of the weight of all their jobs, these and later ones, from now on."""
    levels: dict[int, int]
    """By job, its level from now on."""


class Decided(Fact, frozen=True, kw_only=True, tag="decided"):
    """One decision. A `Start` allocates the GPUs and begins the next attempt of its job; a `Preempt` takes
    a job's GPUs away, and orders its attempt to end.

    Attributes:
        number: Decision number, which is also its record's.
        partition: Name of the partition.
        source: Who decided.
        action: What was done.
        contested: More than one row was legal, and somebody chose.
        guard: Why the guard stepped in, "" if it did not.
        marks_hold: This *wait* passed over jobs that fit.
    """

    number: int
    partition: str
    source: Source
    action: Action
    contested: bool
    guard: str
    marks_hold: bool


class RankLaunched(OfRank, Fact, frozen=True, kw_only=True, tag="rank_launched"):
    """A node acknowledged that this rank's process runs."""

    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock that its GPUs are held to; 0: nobody has set one."""
    clock_note: str = ""
    """Why not the one that was ordered."""


class RankClocked(OfRank, Fact, frozen=True, kw_only=True, tag="rank_clocked"):
    """A node has changed the SM clock of a rank that runs; fields as in `RankLaunched`."""

    sm_clock_mhz: int
    clock_note: str = ""


class RankEnded(OfRank, Fact, frozen=True, kw_only=True, tag="rank_ended", omit_defaults=True):
    """A rank is over: it ended, was refused, or was lost with its node."""

    exit_code: int
    reason: str
    ended_s: float | None = None
    """When, as its node reports it; None: when this was journalled."""
    ran_s: float | None = None
    """How long it ran, as its node measured it; stands above `ended_s`, which is a time of day."""
    usage: RankUsage | None = None
    """What it used from its start on; absent in journals of version 6 and before."""


class AttemptEnding(Fact, frozen=True, kw_only=True, tag="attempt_ending"):
    """The ranks that are left are being ended; `outcome` is what the job becomes once they all are over.

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
    """All ranks are over; the GPUs are free. `outcome`: completed, failed, cancelled, or queued again."""

    asks_scheduler: ClassVar[bool] = True
    job: int
    attempt: int
    outcome: Outcome
    exit_code: int | None
    reason: str
    gpu_memory_mib: int = 0
    """What each of its GPUs has to have from now on: those that it had were too small."""
    alone: bool = False
    """It shares no GPUs from now on: it was out of their memory beside others."""


class QuotaSet(Fact, frozen=True, kw_only=True, tag="quota_set"):
    """These are all limits of a user, an account or a VC from now on; None: there is none."""

    asks_scheduler: ClassVar[bool] = True
    kind: PartyKind
    name: str
    """`default`: all that have no limit of their own."""
    gpus: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None


class MemberSet(Fact, frozen=True, kw_only=True, tag="member_set"):
    """A person may charge jobs to an account, or no longer. The first account of a person is the default."""

    account: str
    person: str
    member: bool


class EligibilityReviewed(Fact, frozen=True, kw_only=True, tag="eligibility_reviewed"):
    """Time has passed, and with it who is eligible may be others: a month began, GPU-hours were used up."""

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
"""What is true of a node from then on; jobs are told of by others."""

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
    """The entry of a stored payload.

    Raises:
        JournalError: the payload is damaged.
    """
    try:
        entry: Entry = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"set_clock" in payload:
            raise JournalError(
                "a broker before this version changed the clock of a running job here (--reclock-s), which "
                "is gone; let that version end the jobs, then begin with a new journal"
            ) from error
        raise JournalError(f"damaged: {error}") from error
    return entry


def kind_of(entry: Entry) -> str:
    """The tag of an entry."""
    return str(entry.__struct_config__.tag)
