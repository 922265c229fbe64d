"""clone3(2) as a variant of `os.fork` that sets the child's parent or control group, which fork(2) cannot.

Imported by the shim, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import signal

PARENT = 0x8000
"""The child gets the parent of this process as its parent."""
INTO_CGROUP = 0x200000000
"""The child is created in a control group (Linux 5.7)."""
_CLONE3 = 435
"""The same number on all machines."""
_WORDS, _EXIT_SIGNAL, _CGROUP = 11, 4, 10
"""`struct clone_args`: its length in words, and the positions of the fields that are set."""


def fork(flags: int, group: int = 0) -> int:
    """Like `os.fork`, for a process with one thread; -1 if the kernel cannot do that.

    Args:
        flags: `PARENT`, `INTO_CGROUP`.
        group: A descriptor of the control group's directory, for `INTO_CGROUP`.
    """
    arguments = (ctypes.c_uint64 * _WORDS)()
    arguments[0], arguments[_CGROUP] = flags, group
    if not flags & PARENT:  # with it, the child inherits this process's exit signal
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
