"""Checks whether this node is fit for new jobs: the operator's health check, and the daemon's own checks.

No check may block the daemon: the health check is a process that the daemon's loop polls, and the meter's
thread reads the GPUs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rlsched.terminal.visible import visible
from rlsched_node.processes.launch import free_and_wanted_mib

MAX_OUTPUT_BYTES = 4096
"""Number of bytes that are kept from the end of a check's output."""
MAX_REASON_CHARACTERS = 200
FIRST_CHECK_WAIT_S = 5.0
"""Maximum wait for the result of the first check, seconds. Then the node registers as unhealthy."""
NOT_YET = "health check: the first run has not finished yet"
STUCK_S = 60.0
"""The GPUs are reported as stuck in the driver after this time without an answer, seconds."""
FREE_AGAIN = 1.1
"""Factor by which the free space of a full disk must exceed the required space before the disk is no longer
full. The margin avoids frequent changes."""
_READ_BYTES = 1 << 16
_READS = 16


class HealthCheck:
    """A command that runs at an interval; a run begins only after the previous run has ended.

    A shell runs the command as the daemon's user, in a process group that is killed after the command has
    ended or timed out.

    Args:
        command: Command for `sh -c`.
        every_s: Seconds from the start of a run to the start of the next.
        timeout_s: Seconds after which a run is killed and has failed.
        elapsed: Monotonic clock, seconds.

    Attributes:
        pids: Process ID of the current run; empty if none runs.
    """

    def __init__(
        self,
        command: str,
        every_s: float = 60.0,
        timeout_s: float = 30.0,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._every_s, self._timeout_s = command, every_s, timeout_s
        self._elapsed = elapsed
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = self._due_s = -float("inf")
        self._is_late = False
        self._said = b""
        self._groups: set[int] = set()
        self.pids: set[int] = set()

    def step(self) -> str | None:
        """Start a run if one is due, and poll the current run.

        Returns:
            Result of a run that has ended: "" if healthy, else the reason; None if no run has ended.
        """
        self._reap()
        if self._process is not None:
            return self._look(self._process)
        if self._groups or self._elapsed() < self._due_s:  # runs never overlap
            return None
        self._began_s = self._elapsed()
        self._due_s = self._began_s + self._every_s
        self._said, self._is_late = b"", False
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return f"health check: it cannot be started: {error.strerror}"
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.pids.add(self._process.pid)
        return None

    def close(self) -> None:
        """End the current run, if there is one."""
        if self._process is not None:
            self._kill(self._process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._let_go(self._process)
        self._reap()

    def _look(self, process: subprocess.Popen[bytes]) -> str | None:
        self._read(process)
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if self._is_late or self._elapsed() - self._began_s < self._timeout_s:
                return None
            self._is_late = True  # it may be stuck in the kernel and survive SIGKILL
            self._kill(process)
            return self._reason(f"it did not end within {self._timeout_s:g} s")
        self._kill(process)  # its process ID is not reused before it is waited for
        code = process.wait()
        self._read(process)
        self._let_go(process)
        if self._is_late:
            return None
        how = f"exit code {code}" if code > 0 else f"it was ended by signal {-code}"
        return "" if code == 0 else self._reason("", how)

    def _reason(self, first: str, otherwise: str = "") -> str:
        lines = [line.strip() for line in self._said.decode(errors="replace").splitlines()]
        last = visible(next((line for line in reversed(lines) if line), otherwise))
        said = ": ".join(part for part in (first, last) if part)
        return f"health check: {said}"[:MAX_REASON_CHARACTERS]

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS):
                piece = os.read(process.stdout.fileno(), _READ_BYTES)
                if not piece:
                    return
                self._said = (self._said + piece)[-MAX_OUTPUT_BYTES:]

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.close()
        self._groups.add(process.pid)
        self.pids.discard(process.pid)
        self._process = None

    def _reap(self) -> None:
        """Reap the processes that the command left in its group; this daemon is a subreaper."""
        for group in list(self._groups):
            try:
                while os.waitpid(-group, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                self._groups.discard(group)


class WatchedGpus(Protocol):
    """Results of a separate thread that reads the GPUs."""

    @property
    def all_lost(self) -> list[str]:
        """If all GPUs were lost at the last reading, a reason for each GPU; else empty."""

    @property
    def asked_s(self) -> float | None:
        """Start time of the reading in progress, monotonic seconds; None if no reading is in progress."""

    @property
    def power_w(self) -> float | None:
        """Power draw of all GPUs, W; None if a GPU does not report it."""


class OwnChecks:
    """The daemon's own checks: whether the GPUs answer and are not all lost, and the free space on its disk.

    Single GPUs out of service do not make the node unhealthy: see `Outages`.

    Args:
        gpus: The node's GPUs, as its meter reads them.
        directory: A directory on the disk to check.
        min_free_mib: Required free space, MiB; None: the default of `refuse_on_full_disk`.
    """

    def __init__(self, gpus: WatchedGpus, directory: Path, min_free_mib: int | None) -> None:
        self._gpus, self._directory, self._min_free_mib = gpus, directory, min_free_mib
        self._is_full = False

    @property
    def power_w(self) -> float | None:
        """Power draw of all GPUs, W; None if a GPU does not report it."""
        return self._gpus.power_w

    def unfit_reasons(self) -> list[str]:
        """Return the reasons why this node is not fit for jobs; empty if it is fit."""
        return [*self._stuck(), *self._gpus.all_lost, *self._disk()]

    def _stuck(self) -> list[str]:
        asked_s = self._gpus.asked_s
        if asked_s is None or time.monotonic() - asked_s < STUCK_S:
            return []
        return [f"its GPUs have not answered for {STUCK_S:g} s or more"]

    def _disk(self) -> list[str]:
        free, wanted = free_and_wanted_mib(self._directory, self._min_free_mib)
        self._is_full = free < wanted * (FREE_AGAIN if self._is_full else 1.0)
        if not self._is_full:
            return []
        return [f"the disk of {self._directory} has less than {wanted} MiB free (--min-free-mib)"]


class Health:
    """The operator's health check and the daemon's own checks, as one result for the broker.

    Args:
        check: The operator's health check; None: there is none.
        own: The daemon's own checks.
        elapsed: Monotonic clock, seconds.
    """

    def __init__(
        self, check: HealthCheck | None, own: OwnChecks, elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        self._check, self._own, self._elapsed = check, own, elapsed
        self._began_s = elapsed()
        self._checked: str | None = "" if check is None else None
        self._told: str | None = None

    @property
    def power_w(self) -> float | None:
        """Power draw of all GPUs, W; None if a GPU does not report it."""
        return self._own.power_w

    def news(self) -> str | None:
        """Return the reason why this node is not fit for jobs; "": it is fit; None: unchanged."""
        said = self._check.step() if self._check is not None else None
        if said is not None:
            self._checked = said
        checked = self._checked
        if checked is None:
            if self._elapsed() - self._began_s < FIRST_CHECK_WAIT_S:
                return None
            checked = NOT_YET
        unhealthy = "; ".join(_some([checked, *self._own.unfit_reasons()]))
        if self._told is not None and _in_kind(unhealthy) == _in_kind(self._told):
            return None
        self._told = unhealthy
        return unhealthy

    def close(self) -> None:
        """End the current run of the health check."""
        if self._check is not None:
            self._check.close()


def _in_kind(reason: str) -> str:
    """Return a reason without its numbers, so that a changed time or size is not a new reason."""
    return re.sub(r"[0-9]+", "#", reason)


def _some(reasons: Sequence[str]) -> list[str]:
    return [reason for reason in reasons if reason]
