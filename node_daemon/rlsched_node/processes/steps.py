"""Events that a node handles, and the effects that result from them, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlsched.wire.messages import AttemptKey, BrokerToNode, Holding, Launch, NodeMessage, RankUsage

# ---- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message from the broker."""

    message: BrokerToNode
    request: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection to the broker is established, for the first time or again."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost. Jobs continue."""


@dataclass(frozen=True, slots=True)
class Started:
    """The rank's shim has claimed the attempt and runs."""

    key: AttemptKey
    pid: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The node could not start the rank, and has removed the rank's files and processes."""

    key: AttemptKey
    message: str
    is_for_now: bool = False
    """The cause is temporary and not a fault of the job, so the job may wait for this node."""
    is_about_owner: bool = False
    """The node runs no jobs of the job's owner."""
    is_about_memory: bool = False
    """A GPU has too little free memory."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The rank has ended, and its exit record is on disk."""

    key: AttemptKey
    exit_code: int
    reason: str = ""
    ended_s: float | None = None
    """Time of the end, Unix seconds; None if unknown."""
    ran_s: float | None = None
    """Run time, seconds; None if unknown."""
    usage: RankUsage | None = None
    """Usage of the rank; None if not measured."""


@dataclass(frozen=True, slots=True)
class ClocksLocked:
    """Outcome of an order to lock the clocks of a rank's GPUs."""

    key: AttemptKey
    mhz: int
    note: str = ""
    never: bool = False
    """Whether every later order to this node would fail too."""


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """The output of a rank could not be copied to the job's output file."""

    key: AttemptKey
    note: str
    """Option of `rlsched submit`, path of the file, and reason."""


@dataclass(frozen=True, slots=True)
class Limited:
    """The shim of a rank has received a new time limit."""

    key: AttemptKey
    limit_s: float


@dataclass(frozen=True, slots=True)
class Checked:
    """A result of the node's health checks."""

    unhealthy: str
    """Why the node must not get new jobs; "" if it may get them."""


@dataclass(frozen=True, slots=True)
class GpusOut:
    """The complete list of the node's GPUs that are out of service now, and the reason for each.

    `usable_mib`: by GPU, the memory that jobs can get, MiB. GPUs that are not included have no limit.
    """

    held: list[Holding]
    usable_mib: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeTick:
    """A turn of the daemon's loop, in which the node checks its deadlines."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The daemon is being stopped; its jobs continue."""


@dataclass(frozen=True, slots=True)
class EndJobs:
    """The node is being stopped together with its jobs."""

    grace_s: float


Event = (
    Received
    | Connected
    | Disconnected
    | Started
    | StartFailed
    | Exited
    | ClocksLocked
    | CopyFailed
    | Limited
    | Checked
    | GpusOut
    | NodeTick
    | Stopping
    | EndJobs
)


# ---- effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the broker; the message is lost if there is no connection."""

    message: NodeMessage
    request: int = 0


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the ID of the cluster and the epoch to disk, before the node performs the effects that follow."""

    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Write to the lease file that the broker has answered the heartbeat sent at `renewed_s`.

    `renewed_s`: seconds since boot.
    """

    renewed_s: float


@dataclass(frozen=True, slots=True)
class StartRank:
    """Lock the clocks of a rank's GPUs, then start its process. Results in `Started` or `StartFailed`."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class HoldClocks:
    """Lock the GPUs of a running rank to the clock `mhz`, MHz; 0: unlock them. Results in `ClocksLocked`."""

    key: AttemptKey
    gpus: tuple[int, ...]
    mhz: int


@dataclass(frozen=True, slots=True)
class LimitRank:
    """Change a rank's time limit, seconds from its start; infinite: no limit. Results in `Limited`."""

    key: AttemptKey
    limit_s: float


@dataclass(frozen=True, slots=True)
class ResetClocks:
    """Unlock the clocks of an ended rank's GPUs."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndRank:
    """Make the shim end the rank: SIGTERM, then SIGKILL after `grace_s` seconds."""

    key: AttemptKey
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class HardKill:
    """SIGKILL the rank's processes and its shim."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class RecordEnded:
    """Record on disk an attempt that ended before it started."""

    key: AttemptKey
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Mark the end of an attempt on disk as acknowledged by the broker."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SendLog:
    """Read a piece of output and send it as `LogData`."""

    key: AttemptKey
    request: int
    offset: int
    max_bytes: int
    is_over: bool
    """Whether no process can write to the output any more."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the daemon's log."""

    line: str


@dataclass(frozen=True, slots=True)
class Quit:
    """Stop the daemon with the error `line`, because the broker refuses this node. Jobs continue."""

    line: str


@dataclass(frozen=True, slots=True)
class TryNext:
    """Connect to the next address, because the broker at this address does not serve this node."""


Effect = (
    Send
    | Persist
    | RenewLease
    | StartRank
    | HoldClocks
    | LimitRank
    | ResetClocks
    | EndRank
    | HardKill
    | RecordEnded
    | Acknowledge
    | SendLog
    | Note
    | TryNext
    | Quit
)
