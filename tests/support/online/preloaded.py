"""Starts `rlsched` in processes forked from one that has imported it, which takes a second of CPU time."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_IMPORTED: Final = (
    "rlsched.cli.operators.serve",
    "rlsched.broker.server.running",
    "rlsched_node.cli",
    "pyarrow.parquet",
)
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(_IMPORTED))


class Preloaded:
    """`rlsched ARGS` as a process, with the interface of `subprocess.Popen`.

    The process inherits from this process its folder and its limit of file sizes only.

    Args:
        args: Arguments of `rlsched`.
        log: File to which standard output and standard error are appended.
        env: Environment of the process.
    """

    def __init__(self, args: Sequence[str], log: Path, env: dict[str, str]) -> None:
        self.args = ["rlsched", *args]
        log.touch()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._process = _FORKS.Process(target=_run, args=(self.args, str(log), env, limit))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; -N after signal N; None: it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Exit code; None: the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process still runs.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has exited."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


def _run(args: list[str], log: str, env: dict[str, str], max_file_bytes: tuple[int, int]) -> None:
    from rlsched.cli.main import main

    with Path(log).open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    resource.setrlimit(resource.RLIMIT_FSIZE, max_file_bytes)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = args
    main()
