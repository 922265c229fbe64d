"""What a node reports to the broker."""

from typing import Final

import msgspec

from rlsched.wire.messages.basic import OfRank
from rlsched.wire.messages.client import LaterBroker
from rlsched.wire.messages.usage import Metered, RankUsage

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
)
"""How a rank can have ended: by itself; by an order to end it; at its job's time limit; because its node was
stopped, or heard nothing of a broker for too long; nobody knows how; because somebody cancelled its job where
it runs, past the broker; because it had more memory than it may, or its node had none left; because its GPU
had none left, as its output says. What is not among these is taken for ""."""


HELD_TO: Final = ("cores", "memory", "processes", "devices")
"""What a node can hold a job to: `Launch.cores`, `Launch.memory_mib`, a bound of its own on processes; the
files of the GPUs that it has."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node's engine can do, `rlsched.broker.nodes.engine`; a node of rlsched's own does it all."""

    exact_gpus: bool = True
    """Jobs get the very GPUs of the `Launch`, and not only as many."""
    per_node_indices: bool = True
    """A gang's GPUs may have other numbers on one node than on another."""
    preempts: bool = True
    """It can stop a job so that it begins again later."""
    clocks: bool = True
    """It obeys `HoldClock`."""
    places: bool = True
    """It takes a `Launch` for an order. Without it, it starts jobs itself, by the order of the queue
    (`JobInfo.queue_key`), and says so (`Begin`)."""
    holds_to: list[str] | None = None
    """What it holds jobs to, as a whole, of `HELD_TO`; None from nodes before there were limits."""
    gpu_memory_mib: int = 0
    """The least that one of its GPUs has; 0: nobody knows."""
    shares: bool = False
    """It runs several jobs on a GPU (`Launch.beside`); no node did before it said so."""
    fences: bool = False
    """It ends ranks by their `Launch.lost_after_s`. Jobs on a node that does not are never lost by time."""

    @property
    def is_own(self) -> bool:
        """Whether it is a node of rlsched's own: it can do all of it, whatever it has and holds jobs to."""
        return self.exact_gpus and self.per_node_indices and self.preempts and self.clocks and self.places


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a node that the broker cannot give away: other jobs have them, or they are out of service."""

    by: str
    """Who has them, or why they are out of service, for people; the same for as long as they are held."""
    gpus: list[int]
    """GPU numbers on the node."""
    until_s: float | None = None
    """When they come back at the latest, Unix seconds; None: nobody knows."""


class AttemptReport(OfRank, frozen=True, kw_only=True):
    """What a node knows of one attempt: `running`, or `ended` with its exit code and reason (see `Ended`)."""

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
    """A node registers or comes back, with everything that it still runs or has ended unacknowledged.

    What is left at its default is not sent: a broker that does not know a field refuses those who use it.
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
    """The `Welcome.cluster` that it has obeyed last."""
    attempts: list[AttemptReport] = []
    sm_clocks_mhz: list[int] = []
    """SM clocks that all of its GPUs can be set to, highest first; empty where they cannot be set."""
    clocks_note: str = ""
    """Why they cannot."""
    directory_id: str = ""
    """Random, of the directory in which it keeps its attempts."""
    wall_s: float | None = None
    """What its clock says as it sends this, Unix seconds."""
    unhealthy: str = ""
    """Why it is to get no new jobs, by its own checks; "" where it may."""
    notes: list[str] = []
    """What people should know of it."""
    capabilities: Capabilities = Capabilities()
    engine_away: bool = False
    """As in `Heartbeat`."""
    held: list[Holding] = []
    """As in `Held`."""
    host: str = ""
    """Where other nodes reach it: a name or an address; "" where it does not say."""


class Heartbeat(
    msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", forbid_unknown_fields=True, omit_defaults=True
):
    """The node is alive. Answered by `HeartbeatAck` where it has a request number."""

    name: str
    unhealthy: str = ""
    """As in `Hello`, at this moment."""
    engine_away: bool = False
    """Whoever says this lives, and the engine that it speaks for does not answer it: what was ordered may
    take as long as that lasts, and no rank is lost by it. `unhealthy` says so to people."""
    power_w: float | None = None
    """What its GPUs draw, W; None where not all of them say, or `Welcome.hears_power` was not said."""
    wall_s: float | None = None
    """As in `Hello`; None where `Welcome.hears_clock` was not set."""


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held", forbid_unknown_fields=True):
    """These are all GPUs of the node that others have, or that are lost; those that are no longer named are
    back.

    The broker offers them to nobody. One that a job of its own has is held once that is over.
    """

    held: list[Holding]


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving", forbid_unknown_fields=True):
    """This daemon is being stopped: no new jobs. What runs goes on, or is being ended and will be told."""

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
    """Highest SM clock that its GPUs are held to; 0: nobody has set one."""
    clock_note: str = ""
    """Why not the one of the `Launch`."""
    limit_s: float | None = None
    """The time limit that it goes by and that `LimitTime` can change, infinite for none; None: it goes by
    that of its `Launch` to its end, or `Welcome.hears_limits` was not said."""


class LaunchRefused(OfRank, frozen=True, kw_only=True, tag="launch_refused", forbid_unknown_fields=True):
    """This rank could not be started."""

    message: str
    is_for_now: bool = False
    """No fault of the job's (the node's disk is full, say): this attempt does not count."""
    is_about_owner: bool = False
    """The node runs no jobs of the job's person: there is no such account, or none that may run jobs."""


class Ended(OfRank, frozen=True, kw_only=True, tag="ended", forbid_unknown_fields=True, omit_defaults=True):
    """This rank is over, or (after a `Kill`) will never start. Repeated until `EndedAck`."""

    exit_code: int
    """The process's own; 128 + signal number where a signal ended it; 143 where it never started."""
    reason: str = ""
    """One of `END_REASONS`."""
    ended_s: float | None = None
    """When it was over, Unix seconds by the node's clock; None where nobody knows."""
    ran_s: float | None = None
    """How long it ran, seconds by a clock that never jumps; None where nobody knows."""
    usage: RankUsage | None = None
    """What it used from its start on; None where nobody measured it, or without `Welcome.hears_usage`."""


class ClockHeld(OfRank, frozen=True, kw_only=True, tag="clock_held", forbid_unknown_fields=True):
    """The answer to `HoldClock`, of a rank that runs."""

    sm_clock_mhz: int
    """See `Launched`."""
    clock_note: str = ""


class TimeLimited(OfRank, frozen=True, kw_only=True, tag="time_limited", forbid_unknown_fields=True):
    """The answer to `LimitTime`, of a rank that runs: it goes by this limit now."""

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
    | Ended
    | Metered
    | LogData
    | LaterBroker
)


class OfNode(msgspec.Struct, frozen=True, kw_only=True, tag="of_node", forbid_unknown_fields=True):
    """What an engine says for one of its nodes: one connection and one key speak for all of them."""

    node: str
    message: NodeMessage
