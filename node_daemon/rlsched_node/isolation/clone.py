"""Fork with clone3(2), which can set the child's parent or control group; fork(2) cannot.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import signal

PARENT = 0x8000
"""Flag: the child gets the parent of this process as its parent."""
INTO_CGROUP = 0x200000000
"""Flag: the child is created in a control group (Linux 5.7)."""
_CLONE3 = 435
"""Number of the system call, the same on all machines."""
_WORDS, _EXIT_SIGNAL, _CGROUP = 11, 4, 10
"""`struct clone_args`: its length in words, and the positions of the fields that `fork` sets."""


def fork(flags: int, group: int = 0) -> int:
    """Fork like `os.fork`, in a process with one thread. Return -1 if the kernel cannot do that.

    Args:
        flags: Any of `PARENT`, `INTO_CGROUP`.
        group: Descriptor of the control group's directory, for `INTO_CGROUP`.
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
