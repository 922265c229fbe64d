"""What the broker answers a client."""

from typing import Any

import msgspec

from rlsched.wire.messages.basic import Refused, Serving, Submitted, SubmittedMany
from rlsched.wire.messages.client import PartyKind
from rlsched.wire.messages.forecasts import DryRunAnswer, JobForecast
from rlsched.wire.messages.history import History, Usage
from rlsched.wire.messages.report import StatsReport
from rlsched.wire.messages.usage import SeenUsage


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it. Times are Unix seconds, None where not yet."""

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
    """What the queue goes by, predicted at submission."""
    start_s: float | None
    end_s: float | None
    exit_code: int | None
    nodes: list[str]
    gpus: list[list[int]]
    """GPU numbers on each of `nodes`."""
    nodes_omitted: int = 0
    """Nodes that were left out of `nodes` and `gpus`, where there are thousands."""
    decided_by: str
    reason: str
    """One line: why it waits, or how it ended."""
    predicted_by: str = ""
    """`running-mean` or `hedge`."""
    preemptible: bool = False
    priority: str = "normal"
    """As submitted."""
    preemptions: int = 0
    """Attempts that were ended for another job's sake."""
    workload: str = ""
    share: str = "auto"
    """As submitted."""
    beside: list[str] = []
    """What people call the jobs that share its GPUs now."""
    speed_energy: float | None = None
    """As submitted; None: the broker's."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, of the highest; None before the first."""
    queue_key: float | None = None
    """Of a job in the queue: what its order goes by, the lowest first, and of equals the lower number."""
    sm_clocks_mhz: list[int] = []
    """... and as each of `nodes` has set it; 0 where it has set none."""
    array: int = 0
    """Of a task: its array."""
    task: int = 0
    tasks: str = ""
    """Of an array: the tasks that are still to come, such as `8-99%4`; "" of a job."""
    num_tasks: int = 0
    """Of an array: how many there are in all; 0 of a job."""
    forecast: JobForecast | None = None
    """When it will start and end; None: nobody has said it yet, or it is over."""
    num_cpus: int = 0
    """Cores that a live job asks for; 0: none."""
    memory_mib: int = 0
    """Host memory that it asks for; likewise."""
    gpu_memory_mib: int = 0
    """What each of its GPUs has to have, by what it asks for or has been seen to need; 0: any will do."""
    gpu_types: list[str] = []
    """GPU types that will do; empty: any."""
    speed_frac: float | None = None
    """How fast a job that has GPUs runs by the models, 1: alone, at the highest clock; None: nobody says."""
    usage: SeenUsage | None = None
    """What it uses; None where nobody has measured it."""
    energy_j: float | None = None
    """What it has used in all attempts, joules; None where no node has measured it."""
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL, whatever ends it; None where the broker does not say, or it is over."""


MAX_CLOCK_SKEW_S = 5.0
"""Clocks of node and broker that differ by more are worth a word."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as people see it."""

    name: str
    state: str
    """up | drained | away | down | asleep | waking | foreign (it belongs to another cluster)"""
    gpus: int
    free_gpus: int
    gpu_type: str
    vc: str
    jobs: list[int]
    called: list[str] = []
    """What people call each of them, `17_3` of a task; empty from an older broker."""
    last_seen_s: float
    clock_skew_s: float | None = None
    """How far its clock was ahead of the broker's at its last heartbeat, seconds; None: it did not say."""
    max_sm_clock_mhz: int = 0
    """The highest SM clock that all of its GPUs can be set to; 0: they cannot be set, or nobody said."""
    clocks_note: str = ""
    """Why they cannot."""
    reason: str = ""
    """Why it is in this state; "" where it is up."""
    notes: list[str] = []
    """What people should know of it in any state."""
    power_w: float | None = None
    """What its GPUs draw now, W; None where nobody has measured it."""
    energy_day_j: float | None = None
    """What they have drawn since its day began, joules; likewise."""
    gpu_frac: float | None = None
    """Time in which its GPUs worked lately for jobs, of all its GPUs; likewise, as the next two."""
    cores: float | None = None
    """CPU cores that jobs keep busy."""
    memory_mib: int | None = None
    """Memory that jobs have."""


class Ok(msgspec.Struct, frozen=True, kw_only=True, tag="ok"):
    """Done."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True, tag="jobs"):
    """A page of jobs by number, the latest that were asked for."""

    jobs: list[JobInfo]
    omitted: int = 0
    """Older jobs that were left out; ask for those before the first of `jobs`."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """A page of the nodes that have ever registered."""

    nodes: list[NodeInfo]
    omitted: int = 0
    """Nodes that were left out; ask for those after the last of `nodes`."""


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user, an account or a VC, None where there is none, and what it has beside each."""

    kind: PartyKind
    name: str
    """`default`: what holds for all that have no limit of their own."""
    gpus: int | None
    jobs: int | None
    gpu_hours: float | None
    by_default: list[str]
    """Those among `gpus`, `jobs`, `gpu_hours` that are the default's."""
    gpus_now: float
    jobs_now: int
    """Waiting and running."""
    gpu_hours_used: float
    """In this calendar month, UTC."""


class Quotas(msgspec.Struct, frozen=True, kw_only=True, tag="quotas"):
    """A page of the quotas."""

    quotas: list[QuotaInfo]
    omitted: int = 0
    """Quotas that follow these."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may charge jobs to an account."""

    account: str
    person: str
    default: bool
    """Of the accounts of this person, the one for jobs that name none."""


class Accounts(msgspec.Struct, frozen=True, kw_only=True, tag="accounts"):
    """A page of the members of accounts, by account."""

    members: list[Member]
    omitted: int = 0
    """Members that follow these."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, tag="explanation"):
    """Why, in words and in data."""

    job: int
    summary: str
    details: list[str]
    record: bytes | None = None
    """The last `DecisionRecord` (msgpack) in which this job was a candidate."""
    forecast: JobForecast | None = None
    array: int = 0
    task: int = 0
    """These three as of `JobInfo`."""

    def __str__(self) -> str:
        """As `rlsched why` says it."""
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
    """Entries of the journal as they lie there."""

    cluster: str
    epoch: int
    """The broker's; of the cluster, the highest decides."""
    last: int
    """Number of the last entry in the journal."""
    rows: list[tuple[int, float, str, bytes, int]]
    """Number, time (Unix seconds), kind, payload, checksum."""
    is_other: bool = False
    """The asker's copy is of another journal, or of one that went another way: it is to begin anew."""
    access: dict[str, str] | None = None
    """The files of the access list, by name; None where the asker has it, or it is too long."""
    ended: list[tuple[Any, ...]] | None = None
    """Rows of ended jobs with their checksums, by number; None where none were asked for, and from an older
    broker."""
    is_ended_all: bool = False
    """There are no more of them."""


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
