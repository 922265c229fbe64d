"""clone3(2) as `os.fork`: with a parent or a control group that fork(2) has no words for.

Imported by the shim, so it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import signal

PARENT = 0x8000
"""The child is not this process's, but its parent's."""
INTO_CGROUP = 0x200000000
"""The child is born in a control group (Linux 5.7)."""
_CLONE3 = 435
"""The same number on all machines."""
_WORDS, _EXIT_SIGNAL, _CGROUP = 11, 4, 10
"""`struct clone_args`: its length, and where what is set stands."""


def fork(flags: int, group: int = 0) -> int:
    """As `os.fork`, by a process of one thread; -1 where the kernel cannot do that.

    Args:
        flags: `PARENT`, `INTO_CGROUP`.
        group: A descriptor of the control group's directory, for `INTO_CGROUP`.
    """
    arguments = (ctypes.c_uint64 * _WORDS)()
    arguments[0], arguments[_CGROUP] = flags, group
    if not flags & PARENT:  # whose child tells its end by the signal that this process would
        arguments[_EXIT_SIGNAL] = signal.SIGCHLD
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = -1
    try:
        pid = int(python.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(8 * _WORDS)))
    finally:
        if pid == 0:
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
    return pid
