"""Reports of a node to the broker."""

from typing import Final

import msgspec

from rlsched.wire.messages.basic import OfRank
from rlsched.wire.messages.client import LaterBroker
from rlsched.wire.messages.usage import Metered, RankUsage

MPS_FAULT: Final = "mps_fault"
MPS_NEIGHBOUR_FAULT: Final = "mps_neighbour_fault"
END_REASONS: Final = (
    "",
    "killed",
    "time_limit",
    "node_stopped",
    "fenced",
    "vanished",
    "cancelled",
    "out_of_memory",
    "gpu_out_of_memory",
    MPS_FAULT,
    MPS_NEIGHBOUR_FAULT,
)
"""How a rank can have ended: by itself; by an order to end it; at its job's time limit; because its node was
stopped, or had no contact with a broker for too long; for an unknown reason; because a user cancelled its job
on the engine, not through the broker; because it exceeded its memory limit or its node was out of memory;
because its GPU was out of memory, according to its output; because an MPS server had a fault, whose cause is
unknown, or is another rank on its GPUs. Any other value is read as ""."""


HELD_TO: Final = ("cores", "memory", "processes", "devices")
"""Limits that a node can enforce: `Launch.cores`, `Launch.memory_mib`, the node's own limit of processes,
and the device files of the GPUs that a job holds."""

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Features of a node's engine, `rlsched.broker.nodes.engine`; a node of rlsched's own has all of them."""

    exact_gpus: bool = True
    """Jobs get exactly the GPUs of the `Launch`, not only their number."""
    per_node_indices: bool = True
    """The GPUs of a gang may have different numbers on each node."""
    preempts: bool = True
    """It can stop a job so that the job starts again later."""
    clocks: bool = True
    """It obeys `HoldClock`."""
    places: bool = True
    """It obeys a `Launch`. Otherwise it starts jobs itself, in the order of the queue (`JobInfo.queue_key`),
    and reports that with `Begin`."""
    holds_to: list[str] | None = None
    """Limits that it enforces for a job as a whole, of `HELD_TO`; None from nodes older than limits."""
    gpu_memory_mib: int = 0
    """Memory of its smallest GPU; 0: unknown."""
    shares: bool = False
    """It runs several jobs on a GPU (`Launch.beside`); false from nodes older than this field."""
    sharing: str = ""
    """How jobs share its GPUs: `MPS`; "": by time slicing."""
    fences: bool = False
    """It ends ranks at their `Launch.lost_after_s`. Jobs on other nodes are never lost by time."""

    @property
    def is_own(self) -> bool:
        """Whether it is a node of rlsched's own, which has all features, whatever its hardware and limits."""
        return self.exact_gpus and self.per_node_indices and self.preempts and self.clocks and self.places


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a node that the broker must not assign: other jobs hold them, or they are out of service."""

    by: str
    """Holder, or reason why they are out of service, for people; constant as long as they are held."""
    gpus: list[int]
    """GPU numbers on the node."""
    until_s: float | None = None
    """Latest time at which they are free again, Unix seconds; None: unknown."""


class AttemptReport(OfRank, frozen=True, kw_only=True):
    """State of an attempt on a node: `running`, or `ended` with its exit code and reason (see `Ended`)."""

    state: str
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    ran_s: float | None = None
    sm_clock_mhz: int = 0
    limit_s: float | None = None
    """Both as in `Launched`."""
    usage: RankUsage | None = None
    """As in `Ended`."""

    def as_launched(self) -> "Launched":
        """The `Launched` of a rank that runs; its process number is not reported again."""
        return Launched(
            job=self.job,
            attempt=self.attempt,
            rank=self.rank,
            pid=0,
            sm_clock_mhz=self.sm_clock_mhz,
            limit_s=self.limit_s,
        )

    def as_ended(self) -> "Ended":
        """The `Ended` of a rank that has ended."""
        return Ended(
            job=self.job,
            attempt=self.attempt,
            rank=self.rank,
            exit_code=self.exit_code or 0,
            reason=self.reason,
            ended_s=self.ended_s,
            ran_s=self.ran_s,
            usage=self.usage,
        )


class Hello(
    msgspec.Struct, frozen=True, kw_only=True, tag="hello", forbid_unknown_fields=True, omit_defaults=True
):
    """A node registers or reconnects, with all attempts that run or whose end is not acknowledged.

    Fields with their default are not sent: a broker that does not know a field refuses messages that use it.
    """

    name: str
    gpus: int
    gpu_type: str = "generic"
    gpu_uuids: list[str] = []
    cpus: int = 0
    memory_mib: int = 0
    vc: str = ""
    boot_id: str = ""
    epoch: int = 0
    """Highest broker epoch that this node has obeyed."""
    cluster: str = ""
    """The last `Welcome.cluster` that it has obeyed."""
    attempts: list[AttemptReport] = []
    sm_clocks_mhz: list[int] = []
    """SM clocks to which all of its GPUs can be locked, MHz, highest first; empty if they cannot be
    locked."""
    clocks_note: str = ""
    """Why they cannot be locked."""
    directory_id: str = ""
    """Random ID of the directory in which it keeps its attempts."""
    wall_s: float | None = None
    """Its clock when it sends this, Unix seconds."""
    unhealthy: str = ""
    """Why it must get no new jobs, by its own checks; "" if it may."""
    notes: list[str] = []
    """Notes about the node for people."""
    capabilities: Capabilities = Capabilities()
    engine_away: bool = False
    """As in `Heartbeat`."""
    held: list[Holding] = []
    """As in `Held`."""
    host: str = ""
    """Name or address at which other nodes reach it; "" if it sends none."""


class Heartbeat(
    msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", forbid_unknown_fields=True, omit_defaults=True
):
    """The node is alive. Answered by `HeartbeatAck` if it has a request number."""

    name: str
    unhealthy: str = ""
    """As in `Hello`, at this time."""
    engine_away: bool = False
    """The sender is alive, but its engine does not answer it: orders may be delayed until the engine does,
    and no rank is lost because of that. `unhealthy` reports it to people."""
    power_w: float | None = None
    """Power of its GPUs, W; None if not all of them report it, or without `Welcome.hears_power`."""
    wall_s: float | None = None
    """As in `Hello`; None without `Welcome.hears_clock`."""


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held", forbid_unknown_fields=True):
    """All GPUs of the node that other users hold or that are lost; GPUs that are no longer listed are free
    again.

    The broker does not assign them. A GPU that a job of the broker holds becomes held after that job has
    ended.
    """

    held: list[Holding]


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving", forbid_unknown_fields=True):
    """This daemon is being stopped: no new jobs. Its ranks go on, or are being ended and will be reported."""

    name: str


class Launched(
    OfRank,
    frozen=True,
    kw_only=True,
    tag="launched",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """This rank's process runs."""

    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock to which its GPUs are locked, MHz; 0: not locked."""
    clock_note: str = ""
    """Why the clock differs from the `Launch`."""
    limit_s: float | None = None
    """The time limit in force, which `LimitTime` can change, infinite for none; None: the limit of its
    `Launch` cannot be changed, or without `Welcome.hears_limits`."""


class LaunchRefused(OfRank, frozen=True, kw_only=True, tag="launch_refused", forbid_unknown_fields=True):
    """This rank could not be started."""

    message: str
    is_for_now: bool = False
    """The cause is not the job's (for example a full disk of the node): this attempt does not count."""
    is_about_owner: bool = False
    """The node runs no jobs of the job's person: there is no such account, or it has no permission."""


class Ended(OfRank, frozen=True, kw_only=True, tag="ended", forbid_unknown_fields=True, omit_defaults=True):
    """This rank has ended, or (after a `Kill`) will never start. Repeated until `EndedAck`."""

    exit_code: int
    """The process's own; 128 + signal number if a signal ended it; 143 if it never started."""
    reason: str = ""
    """One of `END_REASONS`."""
    ended_s: float | None = None
    """Time of the end, Unix seconds of the node's clock; None if unknown."""
    ran_s: float | None = None
    """Run time, seconds of a monotonic clock; None if unknown."""
    usage: RankUsage | None = None
    """Usage from its start on; None if not measured, or without `Welcome.hears_usage`."""


class ClockHeld(OfRank, frozen=True, kw_only=True, tag="clock_held", forbid_unknown_fields=True):
    """The answer to `HoldClock`, for a running rank."""

    sm_clock_mhz: int
    """See `Launched`."""
    clock_note: str = ""


class OutputFailed(OfRank, frozen=True, kw_only=True, tag="output_failed", forbid_unknown_fields=True):
    """This rank's output is not in its job's file; sent with `Welcome.hears_output`, perhaps repeatedly."""

    message: str
    """Option, path and reason."""


class TimeLimited(OfRank, frozen=True, kw_only=True, tag="time_limited", forbid_unknown_fields=True):
    """The answer to `LimitTime`, for a running rank: this limit is in force."""

    limit_s: float


class LogData(msgspec.Struct, frozen=True, kw_only=True, tag="log_data", forbid_unknown_fields=True):
    """The answer to `FetchLog`."""

    data: bytes
    offset: int
    eof: bool


NodeMessage = (
    Hello
    | Heartbeat
    | Held
    | Leaving
    | Launched
    | LaunchRefused
    | ClockHeld
    | TimeLimited
    | OutputFailed
    | Ended
    | Metered
    | LogData
    | LaterBroker
)


class OfNode(msgspec.Struct, frozen=True, kw_only=True, tag="of_node", forbid_unknown_fields=True):
    """A message of an engine for one of its nodes: one connection and one key serve all of them."""

    node: str
    message: NodeMessage
