"""Lowers the priority of background processes next to the broker. Niceness must be set in two places.

If the kernel groups sessions (`/proc/sys/kernel/sched_autogroup_enabled`), the niceness of a process counts
only within its session, and so do the policies SCHED_IDLE and SCHED_BATCH. Against the rest of the machine,
the niceness of the session counts (`/proc/PID/autogroup`). A process that leads a session sets both. If a
control group limits the CPU, or sessions are not grouped, the process's own niceness counts.
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
"""Niceness of the broker's background work: a tenth of a normal process's CPU on a busy machine."""
AGAIN_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""Time to retry, seconds: the kernel accepts only ten changes of session niceness per second and machine."""


def give_way(niceness: int, pid: int = 0) -> None:
    """Lower the priority of a process and its children; call it before the process starts threads.

    If the process does not lead its session, only the process's own niceness changes.

    Args:
        niceness: 0 to 19, added to the current niceness. If the process leads a session, the session gets the
            same niceness.
        pid: Process; 0: this process.

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
            # a kernel that groups no sessions has no such file; if it cannot be set, niceness has to suffice
            if error.errno != errno.EAGAIN or time.monotonic() > until_s:
                return
        time.sleep(AGAIN_S)


def background_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module at `BACKGROUND` niceness, in a process that ends with this one.

    The process lowers its priority before it imports the module: imports take seconds, and the broker needs
    the CPU. The kernel kills the process when the thread that started it ends, also during an import or a
    compilation, which can take minutes on a busy machine. `-P` excludes the working directory from imports.
    """
    return [sys.executable, "-P", "-m", "rlsched.yielding", str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)  # the parent has ended already
    give_way(BACKGROUND)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
