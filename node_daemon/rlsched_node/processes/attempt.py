"""One rank of one attempt of a job, as the node knows it, and what is said about it on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rlsched.wire.messages import (
    AttemptReport,
    ClockHeld,
    Ended,
    Launch,
    Launched,
    LaunchRefused,
    RankUsage,
    TimeLimited,
)
from rlsched_node.processes import shim

EXIT_VANISHED = 137
"""The exit code of a rank that left none: its shim was killed, or the node went down."""
VANISHED = "vanished"
"""The reason of an end with `EXIT_VANISHED` that nobody ordered."""
EXIT_KILLED = shim.EXIT_KILLED
"""The exit code of a rank that was ended before it started (128 + SIGTERM)."""


def grace_s_of(launch: Launch) -> float:
    """Between SIGTERM and SIGKILL of a rank, seconds; the default where the broker does not say."""
    return shim.DEFAULT_GRACE_S if launch.grace_s is None else launch.grace_s


class AttemptKey(NamedTuple):
    """Which rank of which attempt of which job, of the cluster whose broker numbers the jobs."""

    job: int
    attempt: int
    rank: int
    cluster: str

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}.{self.rank}"

    def refused(
        self, message: str, *, is_for_now: bool = False, is_about_owner: bool = False
    ) -> LaunchRefused:
        """This rank could not be started."""
        return LaunchRefused(
            job=self.job,
            attempt=self.attempt,
            rank=self.rank,
            message=message,
            is_for_now=is_for_now,
            is_about_owner=is_about_owner,
        )


class Phase(StrEnum):
    """Where a rank stands on this node."""

    WAITING = "waiting"
    """Accepted, nothing on disk: its GPUs are still held by a rank that is being ended."""
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class Attempt:
    """One rank on this node.

    Attributes:
        gpus: GPU numbers on this node; held while LAUNCHING and RUNNING.
        exit_code: None until ENDED.
        ended_s: When it ended, Unix seconds; None where nobody saw it.
        ran_s: How long it ran, seconds by a clock that never jumps; likewise.
        is_acknowledged: The broker has the end in its journal, or has disowned the attempt.
        is_forgotten: The broker disowned it: its end is not reported.
        hard_kill_at_s: When the daemon stops trusting the shim to end it; None: not told to end.
        launch: Kept while WAITING.
        sm_clock_mhz: What its GPUs are held to; 0: nobody has set their clocks.
        asked_mhz: What it was to be held to; of those that share GPUs, the highest clock counts.
        clock_note: Why not what was ordered.
        limit_s: The time limit that its shim goes by, infinite for none; None: its shim is an older daemon's,
            and goes by what it began with.
        workload: A name of the catalogue; "" where nobody gave one.
        usage: What it used, once it is ENDED; None where nobody measured it.
    """

    key: AttemptKey
    gpus: tuple[int, ...] = ()
    phase: Phase = Phase.ENDED
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    ran_s: float | None = None
    is_acknowledged: bool = False
    is_forgotten: bool = False
    hard_kill_at_s: float | None = None
    launch: Launch | None = None
    sm_clock_mhz: int = 0
    asked_mhz: int = 0
    clock_note: str = ""
    limit_s: float | None = None
    workload: str = ""
    usage: RankUsage | None = None

    @property
    def is_live(self) -> bool:
        return self.phase in (Phase.LAUNCHING, Phase.RUNNING)

    @property
    def is_ending(self) -> bool:
        return self.hard_kill_at_s is not None

    def ended(self) -> Ended:
        assert self.exit_code is not None
        return Ended(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            exit_code=self.exit_code,
            reason=self.reason,
            ended_s=self.ended_s,
            ran_s=self.ran_s,
            usage=self.usage,
        )

    def launched(self, *, tells_limit: bool) -> Launched:
        """This rank runs; its time limit is told to brokers that know the word."""
        return Launched(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            pid=self.pid,
            sm_clock_mhz=self.sm_clock_mhz,
            clock_note=self.clock_note,
            limit_s=self.limit_s if tells_limit else None,
        )

    def clock_held(self) -> ClockHeld:
        """What its GPUs are held to now."""
        return ClockHeld(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            sm_clock_mhz=self.sm_clock_mhz,
            clock_note=self.clock_note,
        )

    def time_limited(self) -> TimeLimited:
        """What it goes by now."""
        assert self.limit_s is not None
        return TimeLimited(
            job=self.key.job, attempt=self.key.attempt, rank=self.key.rank, limit_s=self.limit_s
        )

    def report(self) -> AttemptReport:
        """Its line in a `Hello`."""
        return AttemptReport(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            state="ended" if self.phase is Phase.ENDED else "running",
            exit_code=self.exit_code,
            reason=self.reason,
            ended_s=self.ended_s,
            ran_s=self.ran_s,
            sm_clock_mhz=self.sm_clock_mhz,
            limit_s=self.limit_s,
            usage=self.usage,
        )
