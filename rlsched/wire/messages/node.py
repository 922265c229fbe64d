"""What a node reports to the broker."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages.client import LaterBroker


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of one attempt: `running`, or `ended` with its exit code and reason (see `Ended`)."""

    job: int
    attempt: int
    rank: int
    state: str
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    ran_s: float | None = None
    sm_clock_mhz: int = 0
    """See `Launched`."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", forbid_unknown_fields=True):
    """A node registers or comes back, with everything that it still runs or has ended unacknowledged."""

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
    lost_after_s: float = 0.0
    """The `Welcome.lost_after_s` that its ranks go by still."""
    wall_s: float | None = None
    """What its clock says as it sends this, Unix seconds."""
    unhealthy: str = ""
    """Why it is to get no new jobs, by its own checks; "" where it may."""
    notes: list[str] = []
    """What people should know of it."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", forbid_unknown_fields=True):
    """The node is alive. Answered by `HeartbeatAck` where it has a request number."""

    name: str
    unhealthy: str = ""
    """As in `Hello`, at this moment."""


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving", forbid_unknown_fields=True):
    """This daemon is being stopped: no new jobs. What runs goes on, or is being ended and will be told."""

    name: str


class Launched(msgspec.Struct, frozen=True, kw_only=True, tag="launched", forbid_unknown_fields=True):
    """This rank's process runs."""

    job: int
    attempt: int
    rank: int
    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock that its GPUs are held to; 0: nobody has set one."""
    clock_note: str = ""
    """Why not the one of the `Launch`."""


class LaunchRefused(
    msgspec.Struct, frozen=True, kw_only=True, tag="launch_refused", forbid_unknown_fields=True
):
    """This rank could not be started."""

    job: int
    attempt: int
    rank: int
    message: str
    is_for_now: bool = False
    """No fault of the job's (the node's disk is full, say): this attempt does not count."""
    is_about_owner: bool = False
    """The node runs no jobs of the job's person: there is no such account, or none that may run jobs."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended", forbid_unknown_fields=True):
    """This rank is over, or (after a `Kill`) will never start. Repeated until `EndedAck`."""

    job: int
    attempt: int
    rank: int
    exit_code: int
    """The process's own; 128 + signal number where a signal ended it; 143 where it never started."""
    reason: str = ""
    """"" by itself | killed | time_limit | node_stopped | fenced | vanished"""
    ended_s: float | None = None
    """When it was over, Unix seconds by the node's clock; None where nobody knows."""
    ran_s: float | None = None
    """How long it ran, seconds by a clock that never jumps; None where nobody knows."""


class ClockHeld(msgspec.Struct, frozen=True, kw_only=True, tag="clock_held", forbid_unknown_fields=True):
    """The answer to `HoldClock`, of a rank that runs."""

    job: int
    attempt: int
    rank: int
    sm_clock_mhz: int
    """See `Launched`."""
    clock_note: str = ""


class LogData(msgspec.Struct, frozen=True, kw_only=True, tag="log_data", forbid_unknown_fields=True):
    """The answer to `FetchLog`."""

    data: bytes
    offset: int
    eof: bool


NodeMessage = (
    Hello | Heartbeat | Leaving | Launched | LaunchRefused | ClockHeld | Ended | LogData | LaterBroker
)
