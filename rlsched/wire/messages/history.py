"""Requests for running and finished jobs. Answers have each job in full, or only its values for totals."""

import msgspec

Cursor = tuple[float, int]
"""(end time, job ID) of the last job of a page; the end time of a running job is infinite."""


class WhichJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Filters for a list of running and finished jobs, and the position at which a page begins.

    The newest jobs come first: running jobs by descending ID, then finished jobs by descending end time.
    """

    since_s: float | None = None
    """Only jobs that ended at this time or later, Unix seconds; running jobs always match."""
    until_s: float | None = None
    """Only jobs that ended before this time, and running jobs that started before this time."""
    user: str | None = None
    vc: str | None = None
    account: str | None = None
    states: list[str] = []
    """Any of completed, failed, cancelled, rejected, running; empty: all."""
    name: str = ""
    """Pattern of the job's name with `*`, `?` and `[...]`, as in a shell; "": any name."""
    before: Cursor | None = None
    """Only the older jobs that follow this position in the list; None: begin with the newest job."""


class ListHistory(WhichJobs, frozen=True, kw_only=True, tag="list_history"):
    """Ask for a page of running and finished jobs."""

    limit: int | None = None
    """Maximum number of jobs; None: a full page."""


class ListUsage(WhichJobs, frozen=True, kw_only=True, tag="list_usage"):
    """Ask for a page of jobs, each as a `JobUsage`.

    Jobs that have not finished, but have used GPUs, are included only if `states` contains `running`.
    """


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running or finished job. Times are Unix seconds."""

    job: int
    name: str
    user: str
    account: str
    vc: str
    state: str
    num_gpus: int
    submit_s: float
    start_s: float | None
    """First start of the job; None: the job never started."""
    end_s: float | None
    """End of the job; None while the job runs."""
    wait_s: float | None
    """Queueing delay: first start minus submission; None if the job never started."""
    gpu_s: float
    """GPU-seconds of all attempts; while the job runs, up to now. A GPU that n jobs share counts as 1/n."""
    energy_j: float | None
    """Energy of all attempts, joules; None if no node has measured it."""
    exit_code: int | None
    reason: str
    nodes: str
    """Nodes and GPUs of the last attempt, such as `n0[0,1] n1[3]`."""
    gpu_types: str
    attempts: int
    preemptions: int
    array: int = 0
    """ID of the array, if the job is a task; 0: the job is not a task, or the broker is older."""
    task: int = 0
    asked_gpu_types: str = ""
    """Requested GPU types, separated by commas; "": any type. `gpu_types` has the types of the GPUs used."""
    preferred_types: str = ""
    """Preferred GPU types, separated by commas; "": no preference."""
    cost: float | None = None
    """Cost of `energy_j` with the overhead of the facility (PUE), in `currency`. None: no energy was
    measured, the price was not always known, or the broker is older."""
    carbon_kg: float | None = None
    """Carbon of `energy_j` with the overhead of the facility, kg CO2e. None: no energy was measured, the
    carbon intensity was not always known, or the broker is older and its policy follows prices."""
    currency: str = ""
    """Currency of `cost`; "" without a cost."""


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """A page of jobs, newest first. The page may be empty although more pages follow."""

    jobs: list[PastJob]
    next: Cursor | None = None
    """Value of `before` for the next page; None: this is the last page."""


class UsedSpan(msgspec.Struct, frozen=True, array_like=True):
    """A part of an attempt, for which constant power is assumed, and constant prices are known."""

    start_s: float
    end_s: float
    """Unix seconds; not before `start_s`."""
    gpu_s: float
    energy_j: float | None
    """Energy of this part; None: not measured."""
    cost: float | None = None
    """Cost of this energy, in the job's currency; None: not known for the whole attempt."""
    carbon_kg: float | None = None


class JobUsage(msgspec.Struct, frozen=True, array_like=True):
    """Values of one job, from which clients compute totals. The fields are as in `PastJob`."""

    user: str
    account: str
    vc: str
    end_s: float
    """End of the job; infinite: the job has not finished."""
    state: str
    gpu_s: float
    energy_j: float | None
    wait_s: float | None
    cost: float | None = None
    carbon_kg: float | None = None
    currency: str = ""
    job: int = 0
    """Job ID; 0: the broker is older."""
    spans: list[UsedSpan] = []
    """When the job used these amounts, in order of time. Attempts that ended under an earlier version are
    missing. Their amounts, which are the rest of the totals, count at `end_s`.
    """


class Usage(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    """A page of `JobUsage`, newest job first. The page may be empty although more pages follow."""

    jobs: list[JobUsage]
    next: Cursor | None = None
    """See `History.next`."""
