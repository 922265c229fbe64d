"""What the broker answers a client."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages.history import History, Usage
from rlsched.wire.messages.report import StatsReport


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it. Times are Unix seconds, None where not yet."""

    job: int
    name: str
    user: str
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
    speed_energy: float | None = None
    """As submitted; None: the broker's."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, of the highest; None before the first."""
    sm_clocks_mhz: list[int] = []
    """... and as each of `nodes` has set it; 0 where it has set none."""


MAX_CLOCK_SKEW_S = 5.0
"""Clocks of node and broker that differ by more are worth a word."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as people see it."""

    name: str
    state: str
    """up | drained | away | down"""
    gpus: int
    free_gpus: int
    gpu_type: str
    vc: str
    jobs: list[int]
    last_seen_s: float
    clock_skew_s: float | None = None
    """How far its clock was ahead of the broker's when it registered, seconds; None where it did not say."""
    max_sm_clock_mhz: int = 0
    """The highest SM clock that all of its GPUs can be set to; 0: they cannot be set, or nobody said."""
    clocks_note: str = ""
    """Why they cannot."""
    reason: str = ""
    """Why it is in this state; "" where it is up."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The job is in the journal on disk."""

    job: int


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


class Explanation(msgspec.Struct, frozen=True, kw_only=True, tag="explanation"):
    """Why, in words and in data."""

    job: int
    summary: str
    details: list[str]
    record: bytes | None = None
    """The last `DecisionRecord` (msgpack) in which this job was a candidate."""

    def __str__(self) -> str:
        """As `rlsched why` says it."""
        return "\n".join([f"job {self.job}: {self.summary}", *(f"  {line}" for line in self.details)])


class LogChunk(msgspec.Struct, frozen=True, kw_only=True, tag="log_chunk"):
    """A piece of output. `eof`: the attempt has ended and nothing follows."""

    data: bytes
    offset: int
    eof: bool
    attempt: int = 0
    """The attempt whose output this is; a higher one than before starts again at offset 0."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was understood and refused, or not understood: one line says why."""

    message: str


ClientReply = Submitted | Ok | Jobs | Nodes | History | Usage | Explanation | LogChunk | StatsReport | Refused
