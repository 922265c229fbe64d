"""A private MPS control daemon: in its own directories, and always stopped.

Clients that cannot reach the daemon run on without MPS and without a message (NVIDIA's manual page of
nvidia-cuda-mps-control), so check `clients` before you assume that processes run under MPS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rlsched.errors import RlschedError

CONTROL = "nvidia-cuda-mps-control"
START_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0


class MpsError(RlschedError):
    """MPS cannot be used here."""


class MpsDaemon:
    """Runs `nvidia-cuda-mps-control -f` for a `with` block; changes no mode, clock or limit.

    Args:
        visible: The GPU as CUDA_VISIBLE_DEVICES names it: its UUID, as the daemon renumbers devices.

    Raises:
        MpsError: The program is not installed, or the daemon does not answer.
    """

    def __init__(self, visible: str, *, say: Callable[[str], None] = lambda _line: None) -> None:
        self._visible = visible
        self._say = say
        self._folder: Path | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a client."""
        assert self._folder is not None
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
            "CUDA_VISIBLE_DEVICES": self._visible,
        }

    def __enter__(self) -> MpsDaemon:
        program = shutil.which(CONTROL)
        if program is None:
            raise MpsError(f"{CONTROL} is not installed here")
        self._folder = Path(tempfile.mkdtemp(prefix="rlsched-mps-"))
        try:
            for name in ("pipe", "log"):
                (self._folder / name).mkdir(mode=0o700)
            self._daemon = subprocess.Popen(
                [program, "-f"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # keeps Ctrl-C from it: `quit` is sent instead
            )
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def ask(self, command: str, limit_s: float = START_LIMIT_S) -> str:
        """Send the daemon a command, and return its answer.

        Raises:
            MpsError: The daemon does not answer, or refuses.
        """
        try:
            done = subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(f"{CONTROL}, {command}: {error}") from error
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise MpsError(f"{CONTROL}, {command}: {lines[0] if lines else f'exit code {done.returncode}'}")
        return done.stdout

    def clients(self) -> list[int]:
        """Process ids of the clients of all servers of this daemon."""
        servers = _numbers(self.ask("get_server_list"))
        return [client for server in servers for client in _numbers(self.ask(f"get_client_list {server}"))]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _wait_until_it_answers(self) -> None:
        assert self._daemon is not None
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            if self._daemon.poll() is not None:
                raise MpsError(f"{CONTROL} ended at once with exit code {self._daemon.returncode}")
            try:
                self.ask("get_server_list", limit_s=2.0)
                return
            except MpsError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _stop(self) -> None:
        """Send `quit`; kill the process if it does not end; remove the directories."""
        if self._daemon is not None and self._daemon.poll() is None:
            try:
                self.ask("quit", limit_s=STOP_LIMIT_S)
                self._daemon.wait(STOP_LIMIT_S)
            except (MpsError, subprocess.TimeoutExpired) as error:
                self._say(f"the MPS daemon {self._daemon.pid} does not quit ({error}): ending it")
                _end(self._daemon)
        self._daemon = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _numbers(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]
