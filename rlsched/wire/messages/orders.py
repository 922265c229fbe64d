"""What the broker orders a node, and tells it."""

import msgspec

from rlsched.wire.messages.basic import Launcher, OfRank, Refused

DEFAULT_GRACE_S = 30.0
"""Between SIGTERM and SIGKILL, where neither operator nor job says otherwise."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The node is registered. Attempts in `forget` are not the broker's: end them and forget them.

    A node that said another cluster in its `Hello` is not registered by this: it learns who the broker is. It
    keeps its jobs and obeys no order, or joins and says `Hello` again.
    """

    epoch: int
    cluster: str
    """Identity of the broker's journal; under another one job numbers mean other jobs."""
    heartbeat_s: float
    forget: list[tuple[int, int]] = []
    """(job, attempt)"""
    hears_power: bool = False
    """Whether this broker knows `Heartbeat.power_w`; one that does not would refuse it."""
    hears_limits: bool = False
    """Likewise `Launched.limit_s`."""
    hears_usage: bool = False
    """Likewise `Metered` and `Ended.usage`."""
    hears_clock: bool = False
    """Likewise `Heartbeat.wall_s`."""


class HeartbeatAck(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The broker received the heartbeat of this request number.

    From when that was sent, it starts no job elsewhere for the job's `Launch.lost_after_s` at least. A node
    that gets no later answer ends the ranks of that job by then.
    """


class Launch(OfRank, frozen=True, kw_only=True, tag="launch"):
    """Start one rank of an attempt. A node that knows (job, attempt, rank) does not start it twice."""

    epoch: int
    num_ranks: int
    nodes: list[str]
    """Node of each rank; rank 0's is the gang's master."""
    gpus: list[int]
    """GPU numbers on this node."""
    command: list[str]
    env: dict[str, str]
    cwd: str
    person: str = ""
    """Whose job it is, as the broker knows it from a key; "" from a broker that does not say."""
    time_limit_s: float | None = None
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL, whatever ends it; None from a broker that does not say."""
    sm_clock_mhz: int = 0
    """Highest SM clock for its GPUs until the rank is over; 0: leave them alone."""
    lost_after_s: float = 0.0
    """End it before no heartbeat has been answered for so long (see `HeartbeatAck`); 0: it goes on."""
    launcher: Launcher = "none"
    gpus_of_ranks: list[int] = msgspec.field(default_factory=list)
    """How many GPUs each rank has; empty from a broker that does not say."""
    master: str = ""
    """Where the other nodes reach rank 0's; "" from a broker that does not say."""
    cores: int = 0
    """Processors of this rank's own; 0: it asked for none. A node before there were limits passes it over."""
    memory_mib: int = 0
    """Host memory that this rank may have; 0: it asked for none, and gets what goes with its GPUs."""
    gpu_memory_mib: int = 0
    """What has to be free on each of its GPUs; 0: it asked for none."""
    workload: str = ""
    """A name of the catalogue, where its user gave one; simulated GPUs behave by it."""
    beside: list[int] = msgspec.field(default_factory=list)
    """Jobs that may hold its GPUs too: it shares them. Others must be gone, or going, before it starts."""


class Kill(OfRank, frozen=True, kw_only=True, tag="kill"):
    """End this rank on this node: SIGTERM, then SIGKILL after `grace_s`.

    Always answered by `Ended`, also where the node has never heard of the attempt; it then remembers the
    attempt as ended, so that a `Launch` that comes later is not obeyed.
    """

    epoch: int
    grace_s: float = DEFAULT_GRACE_S
    again: bool = False
    """The job waits afterwards, to begin again: an engine with a queue of its own keeps it there."""


class HoldClock(OfRank, frozen=True, kw_only=True, tag="hold_clock"):
    """Another highest SM clock for the GPUs of a rank that runs; answered by `ClockHeld`."""

    epoch: int
    sm_clock_mhz: int
    """0: let them choose their clocks."""


class LimitTime(OfRank, frozen=True, kw_only=True, tag="limit_time"):
    """Another time limit for a rank that runs, counted from its start; answered by `TimeLimited`.

    Only ranks that have told `Launched.limit_s` are ordered so. It is repeated until that is answered.
    """

    epoch: int
    limit_s: float
    """Infinite: none."""


class SayHello(msgspec.Struct, frozen=True, kw_only=True, tag="say_hello"):
    """The broker does not know this connection (it was restarted, say): send `Hello` again."""

    cluster: str = ""
    """As in `Welcome`; "" from brokers that do not say it."""
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
    """What an engine is told for one of its nodes, see `OfNode`."""

    node: str
    message: BrokerToNode
