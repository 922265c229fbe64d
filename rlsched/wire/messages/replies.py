"""Answers of the broker to a client."""

from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving, Submitted, SubmittedMany
from rlsched.wire.messages.client import PartyKind
from rlsched.wire.messages.forecasts import DryRunAnswer, JobForecast
from rlsched.wire.messages.history import History, Usage
from rlsched.wire.messages.report import StatsReport
from rlsched.wire.messages.usage import SeenUsage


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as shown to people. Times are Unix seconds, None if there is none yet."""

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
    """Run time on which the queue order is based, predicted at submission."""
    start_s: float | None
    end_s: float | None
    exit_code: int | None
    nodes: list[str]
    gpus: list[list[int]]
    """GPU numbers on each of `nodes`."""
    nodes_omitted: int = 0
    """Number of nodes left out of `nodes` and `gpus`, if there are thousands."""
    decided_by: str
    reason: str
    """Why the job waits, or how it ended; one line."""
    predicted_by: str = ""
    """`running-mean` or `hedge`."""
    preemptible: bool = False
    priority: str = "normal"
    """As submitted."""
    preemptions: int = 0
    """Attempts that were preempted for another job."""
    workload: str = ""
    share: str = "auto"
    """As submitted."""
    beside: list[str] = []
    """Displayed IDs of the jobs that share its GPUs now."""
    speed_energy: float | None = None
    """As submitted; None: the broker's."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, relative to the highest; None before the first."""
    queue_key: float | None = None
    """Sort key of a queued job: the lowest first, and among equals the lower number."""
    sm_clocks_mhz: list[int] = []
    """SM clock that each of `nodes` has set, MHz; 0: none set."""
    array: int = 0
    """Array of a task."""
    task: int = 0
    tasks: str = ""
    """Tasks of an array that are not jobs yet, such as `8-99%4`; "" for a job."""
    num_tasks: int = 0
    """Number of tasks of an array; 0 for a job."""
    forecast: JobForecast | None = None
    """Forecast of its start and end; None: no forecast yet, or the job has ended."""
    num_cpus: int = 0
    """Cores that a live job requests; 0: none."""
    memory_mib: int = 0
    """Host memory that it requests; 0: none."""
    gpu_memory_mib: int = 0
    """Minimum memory of each of its GPUs, from its request or its measured need; 0: any GPU fits."""
    gpu_types: list[str] = []
    """Accepted GPU types; empty: any."""
    exclusive: bool = False
    """Whether it gets whole nodes."""
    speed_frac: float | None = None
    """Speed of a job on its GPUs by the models; 1: unshared at the highest clock; None: unknown."""
    usage: SeenUsage | None = None
    """Its usage; None if no node has measured it."""
    energy_j: float | None = None
    """Energy of all attempts, joules; None if no node has measured it."""
    shared_by: list[str] = []
    """How its nodes let it share its GPUs, `time-slicing` or `mps`; empty if it shares none."""
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL; None from an older broker, or if the job has ended."""
    seen_speed_frac: float | None = None
    """Observed speed next to its co-tenants; 1: its speed without them at the same clock; None: unknown."""
    slow_sharing_s: float = 0.0
    """Seconds for which this speed has been below the policy's minimum or the prediction; 0: it is not."""


MAX_CLOCK_SKEW_S = 5.0
"""A larger difference between the clocks of node and broker is reported."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as shown to people."""

    name: str
    state: str
    """up | drained | away | down | asleep | waking | foreign (it belongs to another cluster)"""
    gpus: int
    free_gpus: int
    gpu_type: str
    vc: str
    jobs: list[int]
    called: list[str] = []
    """Displayed ID of each job, `17_3` for a task; empty from an older broker."""
    last_seen_s: float
    clock_skew_s: float | None = None
    """Seconds by which its clock was ahead of the broker's at its last heartbeat; None: not reported."""
    max_sm_clock_mhz: int = 0
    """Highest SM clock to which all of its GPUs can be locked; 0: they cannot be locked, or unknown."""
    clocks_note: str = ""
    """Why they cannot be locked."""
    reason: str = ""
    """Why it is in this state; "" if it is up."""
    notes: list[str] = []
    """Notes for people, in any state."""
    power_w: float | None = None
    """Power of its GPUs now, W; None if not measured."""
    energy_day_j: float | None = None
    """Energy of its GPUs since its day began, joules; None if not measured."""
    gpu_frac: float | None = None
    """Share of the recent GPU time in which its GPUs worked for jobs; None if not measured, as the next
    two."""
    cores: float | None = None
    """CPU cores that jobs keep busy."""
    memory_mib: int | None = None
    """Memory that jobs use."""
    sharing: str = ""
    """How jobs share its GPUs, `time-slicing` or `mps`; "": not at all."""


class Ok(msgspec.Struct, frozen=True, kw_only=True, tag="ok"):
    """Done."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True, tag="jobs"):
    """A page of jobs by number, the latest of the selected ones."""

    jobs: list[JobInfo]
    omitted: int = 0
    """Number of older jobs left out; ask for jobs before the first of `jobs`."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """A page of the nodes that have ever registered."""

    nodes: list[NodeInfo]
    omitted: int = 0
    """Number of nodes left out; ask for nodes after the last of `nodes`."""


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user, an account or a VC, None if there is none, and the usage for each."""

    kind: PartyKind
    name: str
    """`default`: limits of every party without its own."""
    gpus: int | None
    jobs: int | None
    gpu_hours: float | None
    by_default: list[str]
    """Limits among `gpus`, `jobs`, `gpu_hours` that come from the default."""
    gpus_now: float
    jobs_now: int
    """Waiting and running jobs."""
    gpu_hours_used: float
    """In this calendar month, UTC."""


class Quotas(msgspec.Struct, frozen=True, kw_only=True, tag="quotas"):
    """A page of the quotas."""

    quotas: list[QuotaInfo]
    omitted: int = 0
    """Number of quotas that follow."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may charge jobs to an account."""

    account: str
    person: str
    default: bool
    """Whether this is the account for this person's jobs that name none."""


class Accounts(msgspec.Struct, frozen=True, kw_only=True, tag="accounts"):
    """A page of the members of accounts, by account."""

    members: list[Member]
    omitted: int = 0
    """Number of members that follow."""


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
    """`forecast`, `array` and `task` as in `JobInfo`."""

    def __str__(self) -> str:
        """As `rlsched why` prints it."""
        called = f"{self.array}_{self.task}" if self.array else str(self.job)
        return "\n".join([f"job {called}: {self.summary}", *(f"  {line}" for line in self.details)])


class LogChunk(msgspec.Struct, frozen=True, kw_only=True, tag="log_chunk"):
    """A piece of output. `eof`: the attempt has ended and nothing follows."""

    data: bytes
    offset: int
    eof: bool
    attempt: int = 0
    """The attempt whose output this is; a higher one than before starts again at offset 0."""


class JournalRows(msgspec.Struct, frozen=True, kw_only=True, tag="journal_rows"):
    """Entries of the journal in their stored form."""

    cluster: str
    epoch: int
    """Epoch of the broker; the highest of a cluster decides."""
    last: int
    """Number of the last entry in the journal."""
    rows: list[tuple[int, float, str, bytes, int]]
    """Number, time (Unix seconds), kind, payload, checksum."""
    is_other: bool = False
    """The copy is of another journal, or has diverged: it must start again."""
    access: dict[str, str] | None = None
    """Files of the access list by name; None if the copy has it, or it is too long."""
    ended: list[tuple[Any, ...]] | None = None
    """Rows of ended jobs with their checksums, by number; None if none were requested, and from an older
    broker."""
    is_ended_all: bool = False
    """There are no more rows of ended jobs."""


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
