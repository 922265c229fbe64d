"""State of one rank on this node, and the messages about it to the broker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rlsched.wire.messages import (
    AttemptKey,
    AttemptReport,
    ClockHeld,
    Ended,
    Launch,
    Launched,
    LaunchRefused,
    OutputFailed,
    RankUsage,
    TimeLimited,
)
from rlsched.wire.states import ENDED, LAUNCHING, RUNNING
from rlsched_node.processes import shim

EXIT_VANISHED = 137
"""Exit code of a rank without an exit record: its shim was killed, or the node went down."""
VANISHED = "vanished"
"""Reason for an end with `EXIT_VANISHED` if the daemon had not ordered the rank to end."""
EXIT_KILLED = shim.EXIT_KILLED
"""Exit code of a rank that was ended before it started (128 + SIGTERM)."""
SIMULATED_VARIABLE = "RLSCHED_SIMULATED_WORKLOAD"
"""Environment variable that names a workload for simulated GPUs, in tests. Used only if the job was submitted
without the name of a workload."""


def grace_s_of(launch: Launch) -> float:
    """Return the seconds between SIGTERM and SIGKILL of a rank; the default if the broker sends none."""
    return shim.DEFAULT_GRACE_S if launch.grace_s is None else launch.grace_s


def simulated_workload(launch: Launch) -> str:
    """Return the workload that simulated GPUs simulate for a rank; "": unknown. Real GPUs do not use it."""
    return launch.workload or launch.env.get(SIMULATED_VARIABLE, "")


def launch_refused(
    key: AttemptKey,
    message: str,
    *,
    is_for_now: bool = False,
    is_about_owner: bool = False,
    is_about_memory: bool = False,
) -> LaunchRefused:
    """Return the message that tells the broker why a rank could not be started."""
    return LaunchRefused(
        job=key.job,
        attempt=key.attempt,
        rank=key.rank,
        message=message,
        is_for_now=is_for_now,
        is_about_owner=is_about_owner,
        is_about_memory=is_about_memory,
    )


class Phase(StrEnum):
    """State of a rank on this node."""

    WAITING = "waiting"
    """Accepted, but not on disk yet: another rank, which is being ended, still uses the GPUs."""
    LAUNCHING = LAUNCHING
    RUNNING = RUNNING
    ENDED = ENDED


@dataclass(slots=True)
class LocalRank:
    """One rank (the part of a job that runs on one node) on this node.

    Attributes:
        gpus: Indices, on this node, of the GPUs that the rank uses while LAUNCHING and RUNNING.
        exit_code: Exit code; None until ENDED.
        ended_s: Time of the end, Unix seconds; None if unknown.
        ran_s: Run time, seconds of a monotonic clock; None if unknown.
        is_acknowledged: The broker has acknowledged the end, or has disowned the attempt.
        is_forgotten: The broker has disowned the attempt (`Welcome.forget`), so its end is not reported.
        hard_kill_at_s: Time at which the daemon kills the rank if the shim has not ended it by then, seconds
            since boot; None: no end was ordered.
        launch: The launch order; stored while WAITING.
        sm_clock_mhz: Clock to which the rank's GPUs are locked, MHz; 0: not locked.
        asked_mhz: Clock that the broker ordered, MHz. Shared GPUs get the highest of their ranks' clocks.
        clock_note: Why the clock differs from the order; "" if it does not differ.
        output_note: Option, path and reason if the rank's output could not be copied to the job's file, else
            "".
        limit_s: Time limit that the shim enforces, seconds; infinite: no limit. None: an older daemon started
            the shim, so the limit cannot change.
        workload: The workload that simulated GPUs simulate for the rank (`simulated_workload`); "": unknown.
        usage: Measured usage of an ENDED rank; None if not measured.
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
    output_note: str = ""
    limit_s: float | None = None
    workload: str = ""
    usage: RankUsage | None = None

    @property
    def is_live(self) -> bool:
        return self.phase in (Phase.LAUNCHING, Phase.RUNNING)

    @property
    def is_ending(self) -> bool:
        return self.hard_kill_at_s is not None

    def end_report(self) -> Ended:
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
        """Return the message that the rank runs. `tells_limit`: include the rank's time limit."""
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
        """Return the message with the clock to which the rank's GPUs are locked."""
        return ClockHeld(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            sm_clock_mhz=self.sm_clock_mhz,
            clock_note=self.clock_note,
        )

    def output_failed(self) -> OutputFailed:
        """Return the message that the rank's output could not be copied to the job's output file."""
        return OutputFailed(
            job=self.key.job, attempt=self.key.attempt, rank=self.key.rank, message=self.output_note
        )

    def time_limited(self) -> TimeLimited:
        """Return the message with the time limit in force."""
        assert self.limit_s is not None
        return TimeLimited(
            job=self.key.job, attempt=self.key.attempt, rank=self.key.rank, limit_s=self.limit_s
        )

    def report(self) -> AttemptReport:
        """Return the entry for the rank in a `Hello`."""
        return AttemptReport(
            job=self.key.job,
            attempt=self.key.attempt,
            rank=self.key.rank,
            state=ENDED if self.phase is Phase.ENDED else RUNNING,
            exit_code=self.exit_code,
            reason=self.reason,
            ended_s=self.ended_s,
            ran_s=self.ran_s,
            sm_clock_mhz=self.sm_clock_mhz,
            limit_s=self.limit_s,
            usage=self.usage,
        )
