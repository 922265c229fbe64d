"""Answers that the broker sends to a client."""

from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving, Submitted, SubmittedMany
from rlsched.wire.messages.client import PartyKind
from rlsched.wire.messages.forecasts import DryRunAnswer, JobForecast
from rlsched.wire.messages.history import History, Usage
from rlsched.wire.messages.report import StatsReport
from rlsched.wire.messages.usage import ProfileFigure, SeenUsage


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as shown to users. Times are Unix seconds, and None if the event has not happened yet."""

    job: int
    name: str
    user: str
    account: str = ""
    vc: str
    state: str
    """queued | launching | running | completed | failed | cancelled | rejected"""
    num_gpus: int
    attempt: int
    submit_s: float
    predicted_s: float | None
    """Run time predicted at submission, seconds; policies can sort the queue by this time."""
    start_s: float | None
    end_s: float | None
    exit_code: int | None
    nodes: list[str]
    gpus: list[list[int]]
    """Indices of the job's GPUs on each of `nodes`."""
    nodes_omitted: int = 0
    """Number of nodes that are left out of `nodes` and `gpus`, because the job has thousands of nodes."""
    decided_by: str
    reason: str
    """Why the job waits, or how it ended; one line."""
    predicted_by: str = ""
    """Predictor of the run time, `running-mean` or `hedge`."""
    preemptible: bool = False
    priority: str = "normal"
    """Priority of the submission or of a later change."""
    preemptions: int = 0
    """Number of attempts that were preempted for another job."""
    workload: str = ""
    share: str = "auto"
    """Setting `share` of the submission or of a later change."""
    beside: list[str] = []
    """Displayed IDs of the jobs that share the job's GPUs now."""
    speed_energy: float | None = None
    """Weight of energy against time for this job, 0 to 1; None: the broker's setting `speed_energy`."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, as a fraction of the highest clock; None: no attempt."""
    queue_key: float | None = None
    """Sort key of a queued job. Jobs start in ascending order of this key; equal keys: of the job ID."""
    sm_clocks_mhz: list[int] = []
    """SM clock set on each of `nodes`, MHz; 0: no clock is set."""
    array: int = 0
    """ID of the array, if the job is a task; 0: it is not."""
    task: int = 0
    tasks: str = ""
    """Tasks of an array that are not jobs yet, such as `8-99%4`; if there are none, the tasks whose jobs have
    never started."""
    num_tasks: int = 0
    """Number of tasks of an array; 0 for a job."""
    forecast: JobForecast | None = None
    """Forecast of the job's start and end; None: no forecast yet, or the job has ended."""
    num_cpus: int = 0
    """Number of CPU cores that the job requests; 0: no cores, or the job has ended."""
    lent_cpus: int = 0
    """Number of idle CPU cores that are lent to the job until another job requests them."""
    memory_mib: int = 0
    """Host memory that the job requests, MiB; 0: the job requests no amount."""
    gpu_memory_mib: int = 0
    """Minimum memory of each of the job's GPUs, MiB, from its request or its measured need; 0: no minimum."""
    gpu_types: list[str] = []
    """Accepted GPU types; empty: any type."""
    preferred_types: list[str] = []
    """Preferred GPU types; empty: no preference."""
    exclusive: bool = False
    """Whether the job gets whole nodes."""
    speed_frac: float | None = None
    """Speed that the models predict for the job; 1: speed without sharing at the highest clock; None:
    unknown."""
    usage: SeenUsage | None = None
    """Usage of the job; None if no node has measured it."""
    energy_j: float | None = None
    """Energy of all attempts, joules; None if no node has measured it."""
    shared_by: list[str] = []
    """How nodes share the job's GPUs among jobs, `time-slicing` or `mps`; empty if the job shares no GPU."""
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL; None from an older broker, or if the job has ended."""
    seen_speed_frac: float | None = None
    """Measured speed of the job on shared GPUs; 1: speed without sharing at this clock; None: unknown."""
    slow_sharing_s: float = 0.0
    """Time for which the job has been slow without interruption, seconds; 0: it is not slow. Slow means:
    below the speed that the policy permits, or clearly below the predicted speed."""
    cost: float | None = None
    """Cost of `energy_j` up to now, in `currency`. The three fields are as in `PastJob`."""
    carbon_kg: float | None = None
    currency: str = ""


MAX_CLOCK_SKEW_S = 5.0
"""Difference between the clocks of a node and the broker above which the node is reported, seconds."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as shown to users."""

    name: str
    state: str
    """up | drained | unreachable | down | asleep | waking | foreign (the node belongs to another cluster)"""
    gpus: int
    free_gpus: int
    gpu_type: str
    vc: str
    jobs: list[int]
    called: list[str] = []
    """Displayed IDs of the node's jobs, such as `17_3` for a task; empty from an older broker."""
    last_seen_s: float
    clock_skew_s: float | None = None
    """Seconds by which the node's clock was ahead of the broker's at the last heartbeat; None: unknown."""
    max_sm_clock_mhz: int = 0
    """Highest SM clock to which all GPUs of the node can be locked, MHz; 0: not lockable, or unknown."""
    clocks_note: str = ""
    """Why the clocks cannot be locked."""
    reason: str = ""
    """Why the node is in this state; "" if it is up."""
    notes: list[str] = []
    """Notes about the node that are shown to users in any state of the node."""
    power_w: float | None = None
    """Power of the node's GPUs now, W; None if not measured."""
    energy_day_j: float | None = None
    """Energy of the node's GPUs since the last midnight at the node, joules; None if not measured."""
    gpu_frac: float | None = None
    """Fraction of the recent GPU time in which the node's GPUs worked for jobs. `gpu_frac`, `cores` and
    `memory_mib` are None if not measured."""
    cores: float | None = None
    """Number of CPU cores that jobs keep busy."""
    memory_mib: int | None = None
    """Host memory that jobs use, MiB."""
    sharing: str = ""
    """How jobs share the node's GPUs, `time-slicing` or `mps`; "": jobs do not share them."""


class Ok(msgspec.Struct, frozen=True, kw_only=True, tag="ok"):
    """The request has been carried out."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True, tag="jobs"):
    """A page of the requested jobs: the jobs with the highest IDs, in ascending order."""

    jobs: list[JobInfo]
    omitted: int = 0
    """Number of requested jobs with lower IDs than all jobs of this page; `ListJobs.before` requests them."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """A page of the nodes that have ever registered."""

    nodes: list[NodeInfo]
    omitted: int = 0
    """Number of nodes after this page; `ListNodes.after` requests the next page."""


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for a user, an account or a VC, and the present usage. A limit of None: no limit."""

    kind: PartyKind
    name: str
    """Name of the user, account or VC. `default`: these limits apply to each user, account or VC (as given by
    `kind`) that has no limits of its own."""
    gpus: int | None
    jobs: int | None
    gpu_hours: float | None
    by_default: list[str]
    """Which of `gpus`, `jobs`, `gpu_hours` come from the default limits."""
    gpus_now: float
    jobs_now: int
    """Number of waiting and running jobs."""
    gpu_hours_used: float
    """GPU-hours used in this calendar month, UTC."""


class Quotas(msgspec.Struct, frozen=True, kw_only=True, tag="quotas"):
    """A page of the quotas."""

    quotas: list[QuotaInfo]
    omitted: int = 0
    """Number of quotas after this page."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person who can charge jobs to an account."""

    account: str
    person: str
    default: bool
    """Whether this account is charged for the person's jobs that are submitted without an account."""


class Accounts(msgspec.Struct, frozen=True, kw_only=True, tag="accounts"):
    """A page of the members of accounts, sorted by account."""

    members: list[Member]
    omitted: int = 0
    """Number of members after this page."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, tag="explanation"):
    """Explanation of a decision, as text and data."""

    job: int
    summary: str
    details: list[str]
    record: bytes | None = None
    """The last `DecisionRecord` (msgpack) in which this job was a candidate."""
    forecast: JobForecast | None = None
    array: int = 0
    task: int = 0
    """For `forecast`, `array` and `task`, see `JobInfo`."""
    profile: list[ProfileFigure] = []
    """Expected figures of the job's resource use, with their origins; empty from older brokers."""

    def __str__(self) -> str:
        """Return the text that `rlsched why` prints."""
        called = f"{self.array}_{self.task}" if self.array else str(self.job)
        return "\n".join([f"job {called}: {self.summary}", *(f"  {line}" for line in self.details)])


class LogChunk(msgspec.Struct, frozen=True, kw_only=True, tag="log_chunk"):
    """A piece of a rank's output from byte `offset`. `eof`: the attempt has ended, and no output follows."""

    data: bytes
    offset: int
    eof: bool
    attempt: int = 0
    """Attempt that wrote this output. If the number is higher than in the previous piece, read from
    offset 0."""


class JournalRows(msgspec.Struct, frozen=True, kw_only=True, tag="journal_rows"):
    """The answer to `ReadJournal`: the next journal entries, as stored in the journal's database."""

    cluster: str
    epoch: int
    """Epoch of the broker; the broker with the highest epoch of a cluster decides."""
    last: int
    """Number of the last entry in the journal."""
    rows: list[tuple[int, float, str, bytes, int]]
    """For each entry: number, time (Unix seconds), kind, payload, checksum."""
    is_other: bool = False
    """Whether the standby must start a new copy, because its present copy differs from this journal."""
    access: dict[str, str] | None = None
    """Files of the access list by name; None if the standby has the same list, or if the list is too long."""
    ended: list[tuple[Any, ...]] | None = None
    """Rows of ended jobs with their checksums, by job ID; None if the standby requested no rows, or from an
    older broker."""
    is_ended_all: bool = False
    """Whether no more rows of ended jobs follow."""


Listing = Jobs | Nodes | History | Usage | Quotas | Accounts
ClientReply = (
    Submitted
    | SubmittedMany
    | Ok
    | Listing
    | Explanation
    | LogChunk
    | DryRunAnswer
    | StatsReport
    | Serving
    | JournalRows
    | Refused
)
