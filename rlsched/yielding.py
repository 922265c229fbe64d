"""Background processes next to the broker that yield to all others: their niceness is set in two places.

If the kernel groups sessions (`/proc/sys/kernel/sched_autogroup_enabled`), a process's niceness only counts
within its session, and so do the policies SCHED_IDLE and SCHED_BATCH. Against the rest of the machine, the
niceness of the session counts, `/proc/PID/autogroup`. A process that leads a session sets both. If a control
group distributes the processor, or nothing is grouped, the process's own niceness counts.
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
"""Niceness of the broker's background work; on a busy machine, it gets a tenth of the share of others."""
AGAIN_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""Time to retry, seconds: all sessions of a machine together may set their niceness ten times a second."""


def give_way(niceness: int, pid: int = 0) -> None:
    """Let a process and its children yield to all others; call at its start, before it has threads.

    For a process in another's session, only its own niceness changes.

    Args:
        niceness: 0 to 19, added to the current one; the session, if the process leads one, gets the same.
        pid: Process; 0: this one.

    Raises:
        OSError: the process has ended, or is another user's.
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
            # a kernel that groups no sessions has no such file; if it cannot be set, niceness has to suffice
            if error.errno != errno.EAGAIN or time.monotonic() > until_s:
                return
        time.sleep(AGAIN_S)


def background_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a process of `BACKGROUND` niceness, which ends with this one.

    The process yields before it imports the module: imports take seconds, in which the broker works. The
    kernel kills it when the thread that started it ends, also during an import or a compilation, which can
    take minutes on a busy machine. `-P` excludes the working directory from imports.
    """
    return [sys.executable, "-P", "-m", "rlsched.yielding", str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the parent has ended already
    give_way(BACKGROUND)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
