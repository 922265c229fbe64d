"""What can happen to a node (events) and what it then has to do (effects), as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from rlsched.wire.messages import BrokerToNode, Holding, Launch, NodeMessage, RankUsage
from rlsched_node.processes.attempt import AttemptKey

# ---- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the broker."""

    message: BrokerToNode
    request: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection to the broker stands (again)."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone. Jobs go on."""


@dataclass(frozen=True, slots=True)
class Started:
    """The rank's shim has claimed the attempt and runs."""

    key: AttemptKey
    pid: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The node could not start the rank, and nothing of it is left."""

    key: AttemptKey
    message: str
    is_for_now: bool = False
    """No fault of the job's: it may wait for this node."""
    is_about_owner: bool = False
    """The node runs no jobs of its owner."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The rank is over and its exit record is on disk."""

    key: AttemptKey
    exit_code: int
    reason: str = ""
    ended_s: float | None = None
    """Unix seconds; None where nobody saw it end."""
    ran_s: float | None = None
    """How long it ran, seconds; likewise."""
    usage: RankUsage | None = None
    """None where nobody measured it."""


@dataclass(frozen=True, slots=True)
class ClocksLocked:
    """What came of the order to lock the clocks of a rank's GPUs."""

    key: AttemptKey
    mhz: int
    note: str = ""
    never: bool = False
    """No order to this node will do better."""


@dataclass(frozen=True, slots=True)
class Limited:
    """The shim of a rank has been told of another time limit."""

    key: AttemptKey
    limit_s: float


@dataclass(frozen=True, slots=True)
class Checked:
    """The node's health was looked at."""

    unhealthy: str
    """Why it is to get no new jobs; "" where it may."""


@dataclass(frozen=True, slots=True)
class GpusOut:
    """These are all GPUs of the node that jobs cannot have now, and why."""

    held: list[Holding]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """The daemon is to be stopped; its jobs go on."""


@dataclass(frozen=True, slots=True)
class EndJobs:
    """The node is to be stopped with its jobs."""

    grace_s: float


Event = (
    Received
    | Connected
    | Disconnected
    | Started
    | StartFailed
    | Exited
    | ClocksLocked
    | Limited
    | Checked
    | GpusOut
    | Tick
    | Stopping
    | EndJobs
)


# ---- effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the broker; lost when there is no connection."""

    message: NodeMessage
    request: int = 0


@dataclass(frozen=True, slots=True)
class Persist:
    """Write cluster and epoch to disk before anything that follows."""

    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Write that the broker has answered a heartbeat that was sent at `renewed_s`, seconds since boot."""

    renewed_s: float


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start the rank's process, its clocks locked before; answered by `Started` or `StartFailed`."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class HoldClocks:
    """Another clock for the GPUs of a rank that is there, 0: their own; answered by `ClocksLocked`."""

    key: AttemptKey
    gpus: tuple[int, ...]
    mhz: int


@dataclass(frozen=True, slots=True)
class LimitRank:
    """The rank goes by another time limit, seconds from its start, infinite for none. See `Limited`."""

    key: AttemptKey
    limit_s: float


@dataclass(frozen=True, slots=True)
class ResetClocks:
    """The rank is gone: its GPUs choose their clocks again."""

    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndRank:
    """Let the shim end the rank: SIGTERM, then SIGKILL after `grace_s`."""

    key: AttemptKey
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class HardKill:
    """SIGKILL the rank's processes and its shim."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class RecordEnded:
    """Remember on disk an attempt that is over without ever having run."""

    key: AttemptKey
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Mark the end on disk as acknowledged."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SendLog:
    """Read a piece of output and send it as `LogData`."""

    key: AttemptKey
    request: int
    offset: int
    max_bytes: int
    is_over: bool
    """No process writes to it any more."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the daemon's log."""

    line: str


@dataclass(frozen=True, slots=True)
class Quit:
    """The broker will not have this node: stop, with this line. Jobs go on."""

    line: str


@dataclass(frozen=True, slots=True)
class TryNext:
    """The broker at this address is not the one: try the next address."""


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
