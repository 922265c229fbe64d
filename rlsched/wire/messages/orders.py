"""Orders and notices of the broker to a node."""

import msgspec

from rlsched.wire.messages.basic import OfRank, Refused
from rlsched.wire.messages.job_settings import Launcher

DEFAULT_GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, unless the operator or the job sets another value."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The node is registered. Attempts in `forget` are not the broker's: end them and forget them.

    A node whose `Hello` named another cluster is not registered by this: it learns the broker's cluster. It
    keeps its jobs and obeys no order, or joins and sends `Hello` again.
    """

    epoch: int
    cluster: str
    """Identity of the broker's journal; in another journal the same job numbers mean other jobs."""
    heartbeat_s: float
    forget: list[tuple[int, int]] = []
    """(job, attempt)"""
    hears_power: bool = False
    """Whether this broker knows `Heartbeat.power_w`; otherwise it would refuse the field."""
    hears_limits: bool = False
    """Likewise `Launched.limit_s`."""
    hears_usage: bool = False
    """Likewise `Metered` and `Ended.usage`."""
    hears_clock: bool = False
    """Likewise `Heartbeat.wall_s`."""
    hears_output: bool = False
    """Likewise `OutputFailed`."""


class HeartbeatAck(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The broker received the heartbeat with this request number.

    For at least `Launch.lost_after_s` after that was sent, the broker starts the job on no other node. A node
    that gets no later answer ends the ranks of that job within this time.
    """


class Launch(OfRank, frozen=True, kw_only=True, tag="launch"):
    """Start one rank of an attempt. A node that knows (job, attempt, rank) does not start it again."""

    epoch: int
    num_ranks: int
    nodes: list[str]
    """Node of each rank; the node of rank 0 is the gang's master."""
    gpus: list[int]
    """GPU numbers on this node."""
    command: list[str]
    env: dict[str, str]
    cwd: str
    output: str = ""
    """File for the output of this rank, without patterns, below `cwd` unless absolute; "": none. Nodes older
    than this field make none."""
    error: str = ""
    """Likewise for its standard error, which is then not in the file of `output`."""
    appends: bool = False
    """Whether these files keep what they have when the rank starts."""
    whole_lines: bool = False
    """Other ranks may write to the same files at the same time."""
    person: str = ""
    """Owner of the job, as the broker knows it from a key; "" from an older broker."""
    time_limit_s: float | None = None
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL, for every kind of end; None from an older broker."""
    sm_clock_mhz: int = 0
    """Highest SM clock of its GPUs while the rank runs, MHz; 0: unchanged."""
    lost_after_s: float = 0.0
    """End it before no heartbeat has been answered for this time, seconds (see `HeartbeatAck`); 0: never."""
    launcher: Launcher = "none"
    gpus_of_ranks: list[int] = msgspec.field(default_factory=list)
    """Number of GPUs of each rank; empty from an older broker."""
    master: str = ""
    """Address at which other nodes reach rank 0's node; "" from an older broker."""
    cores: int = 0
    """Exclusive processors of this rank; 0: none requested. Nodes older than limits ignore it."""
    memory_mib: int = 0
    """Host memory that this rank may use; 0: none requested, it gets the share of its GPUs."""
    gpu_memory_mib: int = 0
    """Memory that must be free on each of its GPUs; 0: none requested."""
    workload: str = ""
    """Name in the catalogue, if the user gave one; simulated GPUs use it."""
    beside: list[int] = msgspec.field(default_factory=list)
    """Jobs that may share its GPUs. All other jobs must have ended, or be ending, before it starts."""
    shares: bool = False
    """Jobs that start later may share its GPUs."""
    gpu_need_mib: int = 0
    """Memory that it needs on each GPU, as requested or learnt: its limit under MPS; 0: unknown."""


class Kill(OfRank, frozen=True, kw_only=True, tag="kill"):
    """End this rank on this node: SIGTERM, then SIGKILL after `grace_s`.

    Always answered by `Ended`, also if the node does not know the attempt; the node then remembers the
    attempt as ended, so that it does not obey a `Launch` that arrives later.
    """

    epoch: int
    grace_s: float = DEFAULT_GRACE_S
    again: bool = False
    """The job waits afterwards, to start again: an engine with its own queue keeps it there."""


class HoldClock(OfRank, frozen=True, kw_only=True, tag="hold_clock"):
    """Change the highest SM clock of a running rank's GPUs; answered by `ClockHeld`."""

    epoch: int
    sm_clock_mhz: int
    """0: unlock the clocks."""


class LimitTime(OfRank, frozen=True, kw_only=True, tag="limit_time"):
    """Change the time limit of a running rank, counted from its start; answered by `TimeLimited`.

    Sent only for ranks that have reported `Launched.limit_s`, and repeated until it is answered.
    """

    epoch: int
    limit_s: float
    """Infinite: no limit."""


class SayHello(msgspec.Struct, frozen=True, kw_only=True, tag="say_hello"):
    """The broker does not know this connection (for example after a restart): send `Hello` again."""

    cluster: str = ""
    """As in `Welcome`; "" from an older broker."""
    epoch: int = 0


class EndedAck(OfRank, frozen=True, kw_only=True, tag="ended_ack"):
    """The end is in the journal; the node need not repeat it."""


class FetchLog(OfRank, frozen=True, kw_only=True, tag="fetch_log"):
    """Read a piece of output; answered by `LogData` with the same request number."""

    offset: int
    max_bytes: int


BrokerToNode = (
    Welcome | HeartbeatAck | SayHello | Launch | HoldClock | LimitTime | Kill | EndedAck | FetchLog | Refused
)


class ForNode(msgspec.Struct, frozen=True, kw_only=True, tag="for_node"):
    """A message for one node of an engine, see `OfNode`."""

    node: str
    message: BrokerToNode
