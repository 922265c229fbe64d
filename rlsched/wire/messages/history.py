"""Jobs that are over, as they are asked for and told: one by one, and as what sums are made of."""

import msgspec

Cursor = tuple[float, int]
"""(time of its end, job) of the last job of a page; infinite for one that runs."""


class WhichJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which jobs, and where a page begins. They come newest first: those that run, by number, then those that
    are over, by their end."""

    since_s: float | None = None
    """Over at this time or later, Unix seconds; those that run always are."""
    until_s: float | None = None
    """Over before this time; those that run have begun before it."""
    user: str | None = None
    vc: str | None = None
    account: str | None = None
    states: list[str] = []
    """completed, failed, cancelled, rejected, running; empty: all."""
    name: str = ""
    """A pattern with `*`, `?` and `[...]`, as in a shell; "": any."""
    before: Cursor | None = None
    """Those after this one; None: from the newest on."""


class ListHistory(WhichJobs, frozen=True, kw_only=True, tag="list_history"):
    """Ask for a page of jobs that run or are over."""

    limit: int | None = None
    """So many at most; None: as many as a page holds."""


class ListUsage(WhichJobs, frozen=True, kw_only=True, tag="list_usage"):
    """Ask for a page of what sums over jobs that are over are made of. Jobs that run are in none."""


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs or is over. Times are Unix seconds."""

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
    """Queueing delay: first start less submission; None where it never started."""
    gpu_s: float
    """GPU-seconds of all attempts, shares counted; so far, while it runs."""
    energy_j: float | None
    """Joules of all attempts; None where no node has measured it."""
    exit_code: int | None
    reason: str
    nodes: str
    """Where its last attempt ran, such as `n0[0,1] n1[3]`."""
    gpu_types: str
    attempts: int
    preemptions: int
    array: int = 0
    """Of a task: its array; 0 also from an older broker."""
    task: int = 0
    asked_gpu_types: str = ""
    """What it asked for, with commas between; "": any type. `gpu_types`: what it had."""


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """A page of jobs, newest first; it may be empty, and not the last."""

    jobs: list[PastJob]
    next: Cursor | None = None
    """`before` of the next page; None: that was the last."""


class JobUsage(msgspec.Struct, frozen=True, array_like=True):
    """What one job adds to sums. Fields as in `PastJob`."""

    user: str
    account: str
    vc: str
    end_s: float
    state: str
    gpu_s: float
    energy_j: float | None
    wait_s: float | None


class Usage(msgspec.Struct, frozen=True, kw_only=True, tag="usage"):
    """A page of jobs that are over, newest first; it may be empty, and not the last."""

    jobs: list[JobUsage]
    next: Cursor | None = None
    """As in `History`."""
