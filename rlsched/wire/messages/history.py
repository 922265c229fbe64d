"""Requests for finished jobs, and the answers: job by job, and as summands for totals."""

import msgspec

Cursor = tuple[float, int]
"""(end time, job) of the last job of a page; the time is infinite for a running job."""


class WhichJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selection of jobs, and the start of a page. The order is newest first: running jobs by number, then
    finished jobs by end time."""

    since_s: float | None = None
    """Ended at this time or later, Unix seconds; running jobs always match."""
    until_s: float | None = None
    """Ended before this time; a running job matches if it started before it."""
    user: str | None = None
    vc: str | None = None
    account: str | None = None
    states: list[str] = []
    """completed, failed, cancelled, rejected, running; empty: all."""
    name: str = ""
    """A pattern with `*`, `?` and `[...]`, as in a shell; "": any."""
    before: Cursor | None = None
    """Only jobs after this one in the order; None: from the newest on."""


class ListHistory(WhichJobs, frozen=True, kw_only=True, tag="list_history"):
    """Ask for a page of running and finished jobs."""

    limit: int | None = None
    """Maximum number of jobs; None: a full page."""


class ListUsage(WhichJobs, frozen=True, kw_only=True, tag="list_usage"):
    """Ask for a page of summands of finished jobs. Running jobs are not included."""


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
    """Its first start; None: it never started."""
    end_s: float | None
    """None while it runs."""
    wait_s: float | None
    """Queueing delay: first start minus submission; None if it never started."""
    gpu_s: float
    """GPU-seconds of all attempts, with shares counted; up to now while the job runs."""
    energy_j: float | None
    """Joules of all attempts; None if no node has measured it."""
    exit_code: int | None
    reason: str
    nodes: str
    """Nodes and GPUs of its last attempt, such as `n0[0,1] n1[3]`."""
    gpu_types: str
    attempts: int
    preemptions: int
    array: int = 0
    """Array of a task; 0 also from an older broker."""
    task: int = 0
    asked_gpu_types: str = ""
    """Requested GPU types, separated by commas; "": any type. `gpu_types`: the types that it got."""


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """A page of jobs, newest first; it may be empty without being the last."""

    jobs: list[PastJob]
    next: Cursor | None = None
    """`before` of the next page; None: this is the last page."""


class JobUsage(msgspec.Struct, frozen=True, array_like=True):
    """Summands of one job. Fields as in `PastJob`."""

    user: str
    account: str
    vc: str
    end_s: float
    state: str
    gpu_s: float
    energy_j: float | None
    wait_s: float | None


class Usage(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    """A page of finished jobs, newest first; it may be empty without being the last."""

    jobs: list[JobUsage]
    next: Cursor | None = None
    """As in `History`."""
