"""Processes beside the broker that give way to everything else: one niceness, said to the kernel twice.

Where the kernel groups sessions (`/proc/sys/kernel/sched_autogroup_enabled`), a process's niceness counts
against its own session alone, and so do the policies SCHED_IDLE and SCHED_BATCH. Against the rest of the
machine the session's own niceness counts, `/proc/PID/autogroup`. A process that leads a session sets both.
Where a control group has the processor to share out, or nothing is grouped, the first one counts.
"""

from __future__ import annotations

import errno
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Final

BACKGROUND: Final = 10
"""Niceness of the broker's background work: on a machine that is busy it gets a tenth of what others get."""
AGAIN_S: Final = 0.02
PATIENCE_S: Final = 2.0
"""All sessions of a machine together may set theirs ten times a second."""


def give_way(niceness: int, pid: int = 0) -> None:
    """Let a process, and what it starts, yield to all others; at its start, before it has threads.

    Of a process in another's session only its own niceness changes.

    Args:
        niceness: 0 to 19, on top of what it has; its session, where it leads one, gets the same.
        pid: Which process; 0: this one.

    Raises:
        OSError: it is over, or another user's.
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
            # a kernel that groups no sessions has no such file; where it cannot be set, niceness has to do
            if error.errno != errno.EAGAIN or time.monotonic() > until_s:
                return
        time.sleep(AGAIN_S)


def background_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as a process of `BACKGROUND` niceness.

    It gives way before it imports the module: imports take seconds, in which the broker is at work. `-P`:
    the working directory is no place to import from.
    """
    return [sys.executable, "-P", "-m", "rlsched.yielding", module, *arguments]


if __name__ == "__main__":
    give_way(BACKGROUND)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
