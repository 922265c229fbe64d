"""Lowers the CPU priority of background processes on the broker's machine.

If the kernel groups processes by session (`/proc/sys/kernel/sched_autogroup_enabled`), the niceness of a
process and the policies SCHED_IDLE and SCHED_BATCH apply only within its session. Between sessions, the
niceness of the session applies (`/proc/PID/autogroup`). A process that leads a session therefore sets both.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Final

from rlsched.signals import end_with_parent

BACKGROUND: Final = 10
"""Niceness of the broker's background work, which gets a tenth of the CPU time of a normal process that waits
for the same core."""
AGAIN_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""Time for which a refused change of a session's niceness is retried, seconds. The kernel accepts ten changes
per second."""


def give_way(niceness: int, pid: int = 0) -> None:
    """Lower the priority of a process and its children; call it before the process starts threads.

    Args:
        niceness: Increase of the process's niceness, 0 to 19. If the process leads its session, the session
            gets the resulting niceness.
        pid: Process ID; 0: this process.

    Raises:
        OSError: the process has ended, or belongs to another user.
    """
    pid = pid or os.getpid()
    niceness = min(os.getpriority(os.PRIO_PROCESS, pid) + niceness, 19)
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    if os.getsid(pid) == pid:
        _set_session(pid, niceness)


def _set_session(pid: int, niceness: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            Path(f"/proc/{pid}/autogroup").write_text(f"{niceness}\n")
            return
        except OSError as error:
            # a kernel that groups no sessions has no such file; then only the niceness of the process counts
            if error.errno != errno.EAGAIN or time.monotonic() > until_s:
                return
        time.sleep(AGAIN_S)


def background_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a process that runs a module at niceness `BACKGROUND` and ends with this process.

    The process lowers its priority before it imports the module, because imports take seconds of CPU time.
    The kernel kills the process when the thread that started it ends. `-P` excludes the working directory
    from imports.
    """
    return [sys.executable, "-P", "-m", "rlsched.yielding", str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the parent has ended already
    give_way(BACKGROUND)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
