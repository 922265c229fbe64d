"""Messages of every client: submissions, the serving broker and refusals. Imports no other messages."""

from typing import Literal, NamedTuple

import msgspec

Share = Literal["auto", "yes", "no"]
"""Whether a job may share its GPUs with others."""
Priority = Literal["low", "normal", "high", "urgent"]
Launcher = Literal["none", "torchrun", "per-gpu"]
"""How a rank's command is started: once per node; once per node under torchrun; once per GPU."""
DependencyKind = Literal["after", "afterany", "afterok", "afternotok"]


class RankKey(NamedTuple):
    """Identifies a rank of an attempt of a job. The journal of a cluster gives the numbers."""

    job: int
    attempt: int
    rank: int

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}.{self.rank}"


class OfRank(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one rank.

    Attributes:
        job: Number of the job.
        attempt: Number of its attempt, from 1.
        rank: Number of the rank, from 0.
    """

    job: int
    attempt: int
    rank: int

    @property
    def key(self) -> RankKey:
        """The rank."""
        return RankKey(self.job, self.attempt, self.rank)


class DependsOn(msgspec.Struct, frozen=True, array_like=True):
    """A dependency of a job, see `rlsched.broker.state.gates`."""

    kind: DependencyKind
    job: int


class Tasks(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of an array: `first`, `first + step`, ... up to `last`."""

    first: int
    last: int
    step: int = 1


class Submit(
    msgspec.Struct, frozen=True, kw_only=True, tag="submit", forbid_unknown_fields=True, omit_defaults=True
):
    """Queue a job. `token` makes a repeated request harmless: the same token gets the same job.

    Fields with their default are not sent: a broker that does not know a field refuses requests that use it.
    """

    token: str
    command: list[str]
    num_gpus: int
    name: str = ""
    vc: str = ""
    user: str = ""
    num_cpus: int = 0
    """Cores of the whole job; 0: none requested, the job shares the cores that no job requested."""
    memory_mib: int = 0
    """Host memory of the whole job; 0: none requested, the job gets the share of its GPUs."""
    gpu_memory_mib: int = 0
    """Minimum memory of each of its GPUs, free when the job starts; 0: any GPU fits."""
    gpu_types: list[str] = []
    """Accepted GPU types, as `rlsched.models.gpu_types.stands_for` reads them; empty: any."""
    time_limit_s: float | None = None
    env: dict[str, str] = {}
    cwd: str = ""
    preemptible: bool = False
    """The job may be preempted for another job, and started again later."""
    workload: str = ""
    """Name of its workload in the catalogue; "" if unknown."""
    speed_energy: float | None = None
    """Weight of energy against time for this job, 0 to 1; None: the broker's setting."""
    share: Share = "auto"
    """Used if the broker shares GPUs. `auto`: if its needs are known (`broker.state.job_requests`)."""
    lost_after_s: float | None = None
    """Seconds after which the job is ended on an unreachable node and queued again. 0: never, the job goes on
    there; None: the broker's default."""
    priority: Priority = "normal"
    """Jobs with a higher priority start first."""
    account: str = ""
    """Account that is charged in addition to the user; "": the user's first account, if there is one."""
    notify: str = ""
    """Events that send a notification (`NOTIFY_EVENTS`), separated by commas; "": none."""
    hold: bool = False
    """The job waits until it is released."""
    begin_s: float | None = None
    """Earliest start, Unix seconds."""
    depends_on: list[DependsOn] = []
    """The job waits for all of these."""
    singleton: bool = False
    """The job waits until all earlier jobs of the same name and user have ended."""
    tasks: list[Tasks] = []
    """Tasks of a job array, each a job of its own; empty: a single job."""
    array_limit: int = 0
    """Maximum number of array tasks at once; 0: no limit."""
    launcher: Launcher = "none"
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL, up to the broker's limit; None: the broker's setting."""


class SubmitMany(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="submit_many",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Queue all of these jobs, or none of them: a refusal names the job by its position, from 1."""

    jobs: list[Submit]
    env: dict[str, str] = {}
    """Environment variables common to all jobs; a job's own variables override them."""
    check: bool = False
    """Queue nothing, and report whether all jobs would be accepted."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The job is in the journal on disk."""

    job: int


class SubmittedMany(msgspec.Struct, frozen=True, kw_only=True, tag="submitted_many"):
    """The jobs are in the journal on disk, in the order in which they were sent; empty after a check."""

    jobs: list[int]


class WhoServes(msgspec.Struct, frozen=True, kw_only=True, tag="who_serves", forbid_unknown_fields=True):
    """Ask a broker for its epoch. Clients with several addresses send this before anything else."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, tag="serving"):
    """The broker that answers here."""

    cluster: str
    """See `Welcome.cluster`."""
    epoch: int
    """The broker with the highest epoch of a cluster decides."""
    person: str = ""
    """Owner of the key that sent the request."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request is refused or cannot be understood; `message` gives the reason in one line."""

    message: str
