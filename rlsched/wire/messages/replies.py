"""What the broker answers a client."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages.predictions import PredictionReport


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
    decided_by: str
    reason: str
    """One line: why it waits, or how it ended."""
    predicted_by: str = ""
    """`running-mean` or `hedge`."""
    preemptible: bool = False
    preemptions: int = 0
    """Attempts that were ended for another job's sake."""
    workload: str = ""
    speed_energy: float | None = None
    """As submitted; None: the broker's."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, of the highest; None before the first."""
    sm_clocks_mhz: list[int] = []
    """... and as each of `nodes` has set it; 0 where it has set none."""


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
    """Jobs by number; of very many, the latest."""

    jobs: list[JobInfo]
    omitted: int = 0
    """Older jobs that were left out."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """All nodes that have ever registered."""

    nodes: list[NodeInfo]


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


class StatsReport(msgspec.Struct, frozen=True, kw_only=True, tag="stats_report"):
    """Who decided what, and how much there is."""

    policy: str
    decisions: dict[str, int]
    """Decisions by source: policy, rule, guard, automatic."""
    contested: dict[str, int]
    """Those among them in which more than one row was legal."""
    queued: int
    running: int
    ended: int
    uptime_s: float
    prediction: PredictionReport | None = None
    """None from a broker that does not tell yet."""
    speed_energy: float = 0.0
    """What energy counts against time for jobs that do not say it themselves."""
    clocked: int = 0
    """Running jobs at a lower clock than the highest."""
    fixed_clocks: dict[str, str] = {}
    """Nodes whose clocks cannot be set, and why."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was understood and refused, or not understood: one line says why."""

    message: str


ClientReply = Submitted | Ok | Jobs | Nodes | Explanation | LogChunk | StatsReport | Refused
