"""Reports of a node to the broker."""

from typing import Final

import msgspec

from rlsched.wire.messages.basic import OfRank
from rlsched.wire.messages.client import LaterBroker
from rlsched.wire.messages.usage import Metered, RankUsage

OUT_OF_MEMORY: Final = "out_of_memory"
GPU_OUT_OF_MEMORY: Final = "gpu_out_of_memory"
MPS_FAULT: Final = "mps_fault"
MPS_NEIGHBOUR_FAULT: Final = "mps_neighbour_fault"
NOT_STARTED: Final = "not_started"
END_REASONS: Final = (
    "",
    "killed",
    "time_limit",
    "node_stopped",
    "fenced",
    "vanished",
    "cancelled",
    OUT_OF_MEMORY,
    GPU_OUT_OF_MEMORY,
    MPS_FAULT,
    MPS_NEIGHBOUR_FAULT,
    NOT_STARTED,
)
"""Why a rank ended. Any other value is read as "".

    ""                   the rank exited by itself
    killed               the node was ordered to end the rank
    time_limit           the job's time limit was reached
    node_stopped         the node was stopped
    fenced               the node had no contact with a broker for too long
    vanished             the reason is unknown
    cancelled            a user cancelled the job on the engine, not through the broker
    out_of_memory        the rank exceeded its memory limit, or the node was out of memory
    gpu_out_of_memory    a GPU was out of memory, according to the rank's output
    mps_fault            an MPS server had a fault, with an unknown cause
    mps_neighbour_fault  an MPS server had a fault, caused by another rank on the same GPUs
    not_started          the command never began: the node had no free process or no memory to start it
"""


HELD_TO: Final = ("cores", "memory", "processes", "devices")
"""Limits that a node can enforce: number of cores (`Launch.cores`), memory (`Launch.memory_mib`), number of
processes (the node's own limit), and access to no GPU devices other than the job's."""

TIME_SLICING: Final = "time-slicing"
MPS: Final = "mps"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Features of a node's engine (`rlsched.broker.nodes.engine`).

    The fields `exact_gpus` to `places` are always true for a node daemon of rlsched.
    """

    exact_gpus: bool = True
    """Jobs get exactly the GPUs of the `Launch`, not only the same number of GPUs."""
    per_node_indices: bool = True
    """The GPUs of a gang may have different indices on each node."""
    preempts: bool = True
    """The engine can stop a job so that the job starts again later."""
    clocks: bool = True
    """The engine obeys `HoldClock`."""
    places: bool = True
    """The engine obeys a `Launch`. If False, the engine starts jobs itself, in the order of
    `JobInfo.queue_key`, and reports the starts with `Begin`."""
    holds_to: list[str] | None = None
    """Limits in `HELD_TO` that the node enforces for all processes of a rank together; None from nodes
    without this field."""
    gpu_memory_mib: int = 0
    """Memory of the node's smallest GPU, MiB; 0: unknown."""
    shares: bool = False
    """The node can run several jobs on one GPU (`Launch.beside`); False from nodes without this field."""
    sharing: str = ""
    """How jobs share the node's GPUs: `MPS`; "": time slicing."""
    lends: bool = False
    """The node obeys `Launch.lent_cores`, and can take lent cores from running ranks."""
    limits_torch: bool = False
    """Under time slicing, the node limits the GPU memory of PyTorch to `Launch.gpu_need_mib`."""
    fences: bool = False
    """The node ends ranks after `Launch.lost_after_s` without contact. If False, jobs on the node are never
    treated as lost because of the time without contact."""
    tells_memory: bool = False
    """The node sends `GpuMemory` after each registration."""

    @property
    def is_own(self) -> bool:
        """Whether the fields `exact_gpus` to `places` are all true, as for every node daemon of rlsched."""
        return self.exact_gpus and self.per_node_indices and self.preempts and self.clocks and self.places


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a node that the broker must not assign.

    The GPUs are out of service, or jobs or processes that the broker did not start use them.
    """

    by: str
    """Text for users: the job or process that uses the GPUs, or why they are out of service."""
    gpus: list[int]
    """Indices of the GPUs on the node."""
    until_s: float | None = None
    """Latest time at which the GPUs are free again, Unix seconds; None: unknown."""


class AttemptReport(OfRank, frozen=True, kw_only=True):
    """State of one rank on a node: `running`, or `ended` with its exit code and reason (see `Ended`)."""

    state: str
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    ran_s: float | None = None
    sm_clock_mhz: int = 0
    limit_s: float | None = None
    """For `sm_clock_mhz` and `limit_s`, see `Launched`."""
    usage: RankUsage | None = None
    """See `Ended.usage`."""

    def as_launched(self) -> "Launched":
        """Return the `Launched` message for a running rank, with process ID 0."""
        return Launched(
            job=self.job,
            attempt=self.attempt,
            rank=self.rank,
            pid=0,
            sm_clock_mhz=self.sm_clock_mhz,
            limit_s=self.limit_s,
        )

    def as_ended(self) -> "Ended":
        """Return the `Ended` message for a rank that has ended."""
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
    """Register or reconnect a node, and report all attempts that run or have an unacknowledged end.

    A field that has its default value is not sent: an older broker refuses messages with fields that it does
    not know.
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
    """Highest epoch of the brokers whose orders this node has obeyed; a later broker has a higher epoch."""
    cluster: str = ""
    """`Welcome.cluster` of the broker whose orders the node obeyed last."""
    attempts: list[AttemptReport] = []
    sm_clocks_mhz: list[int] = []
    """SM clocks to which all GPUs of the node can be locked, MHz, highest first; empty: not lockable."""
    clocks_note: str = ""
    """Why the clocks cannot be locked."""
    directory_id: str = ""
    """Random ID of the directory in which the node stores its attempts."""
    wall_s: float | None = None
    """Time on the node's clock when the message is sent, Unix seconds."""
    unhealthy: str = ""
    """Failed health check, which excludes the node from new jobs; "": no check has failed."""
    notes: list[str] = []
    """Notes about the node that are shown to users."""
    capabilities: Capabilities = Capabilities()
    engine_away: bool = False
    """See `Heartbeat.engine_away`."""
    held: list[Holding] = []
    """See `Held`."""
    host: str = ""
    """Name or address at which other nodes reach this node; "" if the node sends none."""


class Heartbeat(
    msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", forbid_unknown_fields=True, omit_defaults=True
):
    """Report that the node is alive. If the frame has a request ID, `HeartbeatAck` is the answer."""

    name: str
    unhealthy: str = ""
    """Health check that fails now, as in `Hello`."""
    engine_away: bool = False
    """The sender is alive, but its engine does not answer. Orders may be delayed until the engine answers; no
    rank is marked as lost for this reason. `unhealthy` contains the cause."""
    power_w: float | None = None
    """Power of the node's GPUs, W; None if a GPU does not report its power, or `Welcome.hears_power` is
    False."""
    wall_s: float | None = None
    """See `Hello.wall_s`; None if `Welcome.hears_clock` is False."""


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held", forbid_unknown_fields=True):
    """Report all GPUs of the node that the broker must not assign (`Holding`).

    GPUs that a later list omits are free again. If a job of this broker uses a listed GPU, the entry takes
    effect when the job has ended.
    """

    held: list[Holding]


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True, tag="gpu_memory", forbid_unknown_fields=True):
    """Report the GPUs on which jobs can use only a part of the memory, because other processes use the rest.

    GPUs that a later report omits have no limit. Sent only if `Welcome.hears_memory` is True: after each
    registration, after a refused start, and after a change that exceeds a threshold.
    """

    usable_mib: dict[int, int]
    """Index of a GPU on the node -> memory that all jobs on this GPU can use together, MiB."""


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving", forbid_unknown_fields=True):
    """Report that this daemon is being stopped and accepts no new jobs.

    The node's ranks continue without the daemon, or the daemon ends them and reports their ends.
    """

    name: str


class Launched(
    OfRank,
    frozen=True,
    kw_only=True,
    tag="launched",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Report that a rank's process runs."""

    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock to which the rank's GPUs are locked, MHz; 0: not locked."""
    clock_note: str = ""
    """Why the clock differs from the clock in `Launch`."""
    limit_s: float | None = None
    """The time limit in force, which `LimitTime` can change; infinite: no limit. None: the limit of the
    `Launch` cannot be changed, or the broker's `Welcome.hears_limits` is False."""


class LaunchRefused(
    OfRank, frozen=True, kw_only=True, tag="launch_refused", forbid_unknown_fields=True, omit_defaults=True
):
    """Report that a rank could not be started."""

    message: str
    is_for_now: bool = False
    """The job is not the cause (for example, a disk is full), so the attempt is not counted as a retry."""
    is_about_owner: bool = False
    """The node runs no jobs of this user: the account does not exist there, or may not run jobs."""
    is_about_memory: bool = False
    """A GPU has less free memory than `Launch.gpu_memory_mib`. False from older nodes."""


class Ended(OfRank, frozen=True, kw_only=True, tag="ended", forbid_unknown_fields=True, omit_defaults=True):
    """Report that a rank has ended or, after a `Kill`, will never start. Repeated until `EndedAck`."""

    exit_code: int
    """Exit code of the process; 128 + signal number if a signal ended it; 143 if it never started."""
    reason: str = ""
    """One of `END_REASONS`."""
    ended_s: float | None = None
    """Time of the end, Unix seconds of the node's clock; None if unknown."""
    ran_s: float | None = None
    """Run time, seconds of a monotonic clock; None if unknown."""
    usage: RankUsage | None = None
    """Usage since the rank's start; None if not measured, or if `Welcome.hears_usage` is False."""


class ClockHeld(OfRank, frozen=True, kw_only=True, tag="clock_held", forbid_unknown_fields=True):
    """The answer to `HoldClock`: the upper limit of the SM clock, MHz, that is now set for a running rank."""

    sm_clock_mhz: int
    """See `Launched`."""
    clock_note: str = ""


class OutputFailed(OfRank, frozen=True, kw_only=True, tag="output_failed", forbid_unknown_fields=True):
    """Report that this rank's output is not written to the file that the job requested.

    Sent only if `Welcome.hears_output` is True; can be sent repeatedly.
    """

    message: str
    """The job's option, the path of the file, and the reason."""


class TimeLimited(OfRank, frozen=True, kw_only=True, tag="time_limited", forbid_unknown_fields=True):
    """The answer to `LimitTime`: the time limit that is now in force for a running rank, seconds."""

    limit_s: float


class LogData(msgspec.Struct, frozen=True, kw_only=True, tag="log_data", forbid_unknown_fields=True):
    """The answer to `FetchLog`: a piece of a rank's output from byte `offset`; `eof`: the end of the file."""

    data: bytes
    offset: int
    eof: bool


NodeMessage = (
    Hello
    | Heartbeat
    | Held
    | GpuMemory
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
    """A message of an engine on behalf of one of its nodes.

    All nodes of an engine share one connection and one key.
    """

    node: str
    message: NodeMessage
