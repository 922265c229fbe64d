"""kill -9 of a process by itself at a chosen file operation, for tests of crashes."""

from __future__ import annotations

import os
import signal
import sys
from fnmatch import fnmatch


def die_at(event: str, path: str, number: int = 1) -> None:
    """Kill this process before an operation; processes that it forks continue.

    Args:
        event: Audit event of the operation, such as `os.mkdir`, `open` or `subprocess.Popen`.
        path: Pattern of the operation's first argument; `*` also matches `/`.
        number: Position of the operation among all that match, from 1.
    """
    pid, left = os.getpid(), number

    def look(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if name != event or os.getpid() != pid or not fnmatch(os.fsdecode(str(arguments[0])), path):
            return
        left -= 1
        if left == 0:
            os.kill(pid, signal.SIGKILL)

    sys.addaudithook(look)
