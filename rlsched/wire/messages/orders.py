"""Orders and notices that the broker sends to a node."""

import msgspec

from rlsched.wire.messages.basic import OfRank, Refused
from rlsched.wire.messages.job_settings import Launcher

DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, unless the operator or the job sets another value."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The answer to `Hello`: the node is registered. The node must end and remove the attempts in `forget`.

    If the node's `Hello` named another cluster, `Welcome` only names the broker's cluster, and the node is
    not registered. The node then continues its jobs and obeys no order, or joins this cluster by a new
    `Hello`.
    """

    epoch: int
    cluster: str
    """ID of the broker's journal. The same job ID in another journal is another job."""
    heartbeat_s: float
    forget: list[tuple[int, int]] = []
    """(job, attempt) of reported attempts that are outdated, according to the broker's journal."""
    hears_power: bool = False
    """Whether this broker accepts `Heartbeat.power_w`. An older broker would refuse the message."""
    hears_limits: bool = False
    """Whether this broker accepts `Launched.limit_s`."""
    hears_usage: bool = False
    """Whether this broker accepts `Metered` and `Ended.usage`."""
    hears_clock: bool = False
    """Whether this broker accepts `Heartbeat.wall_s`."""
    hears_output: bool = False
    """Whether this broker accepts `OutputFailed`."""
    hears_memory: bool = False
    """Whether this broker accepts `GpuMemory`."""


class HeartbeatAck(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The answer to the heartbeat with this request ID.

    For at least `Launch.lost_after_s` after the heartbeat was sent, the broker does not start the node's jobs
    on other nodes. Without a later answer, the node ends its ranks within this time.
    """


class Launch(OfRank, frozen=True, kw_only=True, tag="launch"):
    """Start one rank of an attempt. A node that has a record of this rank and attempt starts nothing."""

    epoch: int
    num_ranks: int
    nodes: list[str]
    """Node of each rank; the node of rank 0 is the gang's master."""
    gpus: list[int]
    """Indices of the rank's GPUs on this node."""
    command: list[str]
    env: dict[str, str]
    cwd: str
    output: str = ""
    """File for the output of this rank, below `cwd` unless absolute. Filename patterns, such as `%j`, are
    already replaced. "": no file. An older node ignores this field."""
    error: str = ""
    """File for the standard error of this rank, like `output`; "": the same file as `output`."""
    appends: bool = False
    """Whether the node appends to the files of `output` and `error`; if not, the files are emptied first."""
    whole_lines: bool = False
    """Whether to write only whole lines, because other ranks may write to the same files at the same time."""
    person: str = ""
    """Owner of the job: the owner of the key that submitted the job; "" from an older broker."""
    time_limit_s: float | None = None
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL, for every reason to end the rank; None from an older broker."""
    sm_clock_mhz: int = 0
    """Highest SM clock of the rank's GPUs while the rank runs, MHz; 0: unchanged."""
    lost_after_s: float = 0.0
    """Longest time without an answered heartbeat, seconds: the node ends the rank before this time has passed
    (see `HeartbeatAck`). 0: never."""
    launcher: Launcher = "none"
    gpus_of_ranks: list[int] = msgspec.field(default_factory=list)
    """Number of GPUs of each rank; empty from an older broker."""
    master: str = ""
    """Address at which other nodes reach rank 0's node; "" from an older broker."""
    hosts: list[str] = msgspec.field(default_factory=list)
    """For each rank, the address at which other nodes reach its node; the first address is `master`. Empty
    for one rank, or from an older broker."""
    cores: int = 0
    """Number of processors that only this rank uses; 0: the rank shares processors with other ranks. Nodes
    without limits ignore this field."""
    lent_cores: int = 0
    """Number of further processors that this rank may use until another rank needs them; only for nodes with
    `Capabilities.lends`."""
    memory_mib: int = 0
    """Maximum host memory of this rank, MiB; 0: the maximum is in proportion to the rank's GPUs."""
    gpu_memory_mib: int = 0
    """Memory that must be free on each of the rank's GPUs, MiB; 0: no minimum."""
    workload: str = ""
    """Name of the workload in the catalogue, if the user gave one; used by simulated GPUs."""
    beside: list[int] = msgspec.field(default_factory=list)
    """Jobs that may share the rank's GPUs. All other jobs on these GPUs must have ended, or be ending, before
    the rank starts."""
    shares: bool = False
    """Whether jobs that start later may share the rank's GPUs."""
    gpu_need_mib: int = 0
    """Memory that the rank needs on each GPU, as requested or measured, MiB. Under MPS, this is the rank's
    limit. 0: unknown."""


class Kill(OfRank, frozen=True, kw_only=True, tag="kill"):
    """End this rank on this node: SIGTERM, then SIGKILL after `grace_s`.

    The node always answers with `Ended`. A node without a record of the attempt records it as ended, and
    ignores a later `Launch` of the attempt.
    """

    epoch: int
    grace_s: float = DEFAULT_GRACE_S
    again: bool = False
    """Whether the job will start again later; an engine then keeps the job in its own queue, if it has one.
    """


class HoldClock(OfRank, frozen=True, kw_only=True, tag="hold_clock"):
    """Change the highest SM clock of a running rank's GPUs. The node answers with `ClockHeld`."""

    epoch: int
    sm_clock_mhz: int
    """New highest SM clock, MHz; 0: unlock the clocks."""


class LimitTime(OfRank, frozen=True, kw_only=True, tag="limit_time"):
    """Change the time limit of a running rank, counted from its start. The node answers with `TimeLimited`.

    Sent only for ranks that have reported `Launched.limit_s`, and repeated until the node answers.
    """

    epoch: int
    limit_s: float
    """New time limit, seconds; infinite: no limit."""


class SayHello(msgspec.Struct, frozen=True, kw_only=True, tag="say_hello"):
    """Ask a node for its `Hello`: after a restart, the broker does not know the node's connection."""

    cluster: str = ""
    """See `Welcome.cluster`; "" from an older broker."""
    epoch: int = 0


class EndedAck(OfRank, frozen=True, kw_only=True, tag="ended_ack"):
    """The answer to `Ended`: the end is in the journal, and the node stops sending `Ended`."""


class FetchLog(OfRank, frozen=True, kw_only=True, tag="fetch_log"):
    """Read up to `max_bytes` of a rank's output from byte `offset`. `LogData` is the answer."""

    offset: int
    max_bytes: int


BrokerToNode = (
    Welcome | HeartbeatAck | SayHello | Launch | HoldClock | LimitTime | Kill | EndedAck | FetchLog | Refused
)


class ForNode(msgspec.Struct, frozen=True, kw_only=True, tag="for_node"):
    """A message to one node of an engine, sent on the connection that the engine's nodes share (`OfNode`)."""

    node: str
    message: BrokerToNode
