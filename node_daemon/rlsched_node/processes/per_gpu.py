"""Starts a rank's command once for each of its GPUs, and ends all processes as soon as one of them fails.

The interpreter of the node daemon runs this file as a script, so it imports only the standard library, and
modules of this package with the same restriction. The number of processes is `LOCAL_WORLD_SIZE`
(`rank_environment`). The script forwards no signals: the shim signals the whole process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

if __name__ == "__main__":  # the isolated interpreter's path lacks this directory and the package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..")))
from rlsched_node.processes import shortage

GRACE_S = float(os.environ.get("RLSCHED_GRACE_S", "30"))
"""After one process has failed: time from SIGTERM to SIGKILL for the other processes, seconds."""


def main(command: list[str]) -> int:
    """Run the command for each GPU. Return the exit code of the first process that fails, 0 if none fails."""
    reports_fd = shortage.launcher_pipe()
    count, first = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["RLSCHED_FIRST_RANK"])
    running: dict[int, subprocess.Popen[bytes]] = {}

    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, _wait_on)  # not `SIG_IGN`, because the processes would inherit it
    for local in range(count):
        rank = str(first + local)
        env = os.environ | {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local)}
        try:
            process = subprocess.Popen(command, env=env)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            shortage.report(reports_fd, error)
            return _exit_code_of(running, 127 if is_missing else 126)
        running[process.pid] = process
        if reports_fd >= 0:  # the command has begun
            os.close(reports_fd)
            reports_fd = -1
    while running:
        pid, status = os.wait()
        process = running.pop(pid, None)  # type: ignore[arg-type]
        if process is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        if code:
            return _exit_code_of(running, code if code > 0 else 128 - code)
    return 0


def _wait_on(number: int, frame: FrameType | None) -> None:
    """Do nothing: the processes receive the signal themselves."""


def _exit_code_of(running: dict[int, subprocess.Popen[bytes]], code: int) -> int:
    """End the remaining processes, and return `code`."""
    for process in running.values():
        process.terminate()
    for process in running.values():
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
