"""Whether a process has exited, for tests that wait for the end of processes that are not their children."""

from __future__ import annotations

from pathlib import Path


def has_exited(pid: int) -> bool:
    """Return whether a process does not exist or is a zombie.

    An orphan stays a zombie if this process is its subreaper, as in-process node daemons of other tests are.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
