"""Messages of every client: submissions, the serving broker and refusals. They import no others."""

from typing import Literal

import msgspec

Share = Literal["auto", "yes", "no"]
"""Whether a job may share its GPUs with others."""
Priority = Literal["low", "normal", "high", "urgent"]
Launcher = Literal["none", "torchrun", "per-gpu"]
"""How a rank's command is started: once a node; once a node under torchrun; once a GPU."""
DependencyKind = Literal["after", "afterany", "afterok", "afternotok"]


class DependsOn(msgspec.Struct, frozen=True, array_like=True):
    """What a job waits for, see `rlsched.broker.state.gates`."""

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

    What is left at its default is not sent: a broker that does not know a field refuses those who use it.
    """

    token: str
    command: list[str]
    num_gpus: int
    name: str = ""
    vc: str = ""
    user: str = ""
    num_cpus: int = 0
    """Cores of the whole job; 0: it asks for none, and shares those that nobody asked for."""
    memory_mib: int = 0
    """Host memory of the whole job; 0: it asks for none, and may have what goes with its GPUs."""
    gpu_memory_mib: int = 0
    """What each of its GPUs has at least, and has free when it starts; 0: any will do."""
    gpu_types: list[str] = []
    """GPU types that will do, as `rlsched.models.gpu_types.stands_for` reads them; empty: any."""
    time_limit_s: float | None = None
    env: dict[str, str] = {}
    cwd: str = ""
    preemptible: bool = False
    """It may be stopped for another job's sake, and started again later."""
    workload: str = ""
    """Its workload, a name of the catalogue; "" where unknown."""
    speed_energy: float | None = None
    """What energy counts against time for it, 0 to 1; None: what the broker says."""
    share: Share = "auto"
    """Where the broker shares GPUs. `auto`: if it is known what it needs (`rlsched.broker.state.asked`)."""
    lost_after_s: float | None = None
    """When a node of it has been unreachable for so long, it is ended there and queued again. 0: never, it
    goes on; None: by the broker's default."""
    priority: Priority = "normal"
    """Jobs of a higher one go first."""
    account: str = ""
    """What it is charged to beside its user; "": the user's first account, where there is one."""
    notify: str = ""
    """What is told of it (`NOTIFY_EVENTS`), with commas in between; "": nothing."""
    hold: bool = False
    """It waits until it is released."""
    begin_s: float | None = None
    """It waits until this time, Unix seconds."""
    depends_on: list[DependsOn] = []
    """It waits for all of these."""
    singleton: bool = False
    """It waits until all earlier jobs of its name and user are over."""
    tasks: list[Tasks] = []
    """It is an array of these tasks, each a job like it; empty: it is one job."""
    array_limit: int = 0
    """So many of them at once, at most; 0: as many as there is room for."""
    launcher: Launcher = "none"
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL, up to the broker's bound; None: the broker's."""


class SubmitMany(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="submit_many",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Queue all of these jobs, or none of them: one that is refused is named by its place, from 1."""

    jobs: list[Submit]
    env: dict[str, str] = {}
    """Environment variables that they have in common; a job's own stand above them."""
    check: bool = False
    """Queue nothing, and say whether all could be."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The job is in the journal on disk."""

    job: int


class SubmittedMany(msgspec.Struct, frozen=True, kw_only=True, tag="submitted_many"):
    """The jobs are in the journal on disk, in the order in which they were sent; empty after a check."""

    jobs: list[int]


class WhoServes(msgspec.Struct, frozen=True, kw_only=True, tag="who_serves", forbid_unknown_fields=True):
    """Ask a broker for its epoch. Clients that know several addresses ask before anything else."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, tag="serving"):
    """Which broker answers here."""

    cluster: str
    """See `Welcome.cluster`."""
    epoch: int
    """Of several brokers of a cluster, the one with the highest decides."""
    person: str = ""
    """Whom the asker's key belongs to."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was understood and refused, or not understood: one line says why."""

    message: str
