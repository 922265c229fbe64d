"""The training processes: started together, monitored, and always ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rlsched.errors import RlschedError
from studies.gpu.protocol import STOP, Ended, Failed, Message, Warm, Window, decode_message

ROOT = Path(__file__).resolve().parents[2]
WARM_LIMIT_S = 180.0
GRACE_S = 60.0
END_LIMIT_S = 10.0


class MeasurementError(RlschedError):
    """This measurement failed; others may succeed."""


class Children:
    """Context manager for training processes. At its end, all of them and their workers have ended.

    Args:
        commands: One per child.
        environment: Variables added to the environment of this process.
        folder: Folder for the standard error of the children.
    """

    def __init__(self, commands: Sequence[list[str]], environment: dict[str, str], folder: Path) -> None:
        self._commands = commands
        self._folder = folder
        self._environment = {**os.environ, **environment}
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self._processes: list[subprocess.Popen[str]] = []
        self._heard: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._ended: set[int] = set()

    def __enter__(self) -> Children:
        try:
            for place, words in enumerate(self._commands):
                with self._log(place).open("wb") as log:
                    process = subprocess.Popen(
                        words,
                        cwd=ROOT,
                        env=self._environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        start_new_session=True,  # Ctrl-C is for us; its workers die with its group
                    )
                self._processes.append(process)
                threading.Thread(target=self._listen, args=(place, process), daemon=True).start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def say(self, word: str) -> None:
        """Send a word to all children, one right after the other."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its last message or its silence is reported later
                process.stdin.write(word + "\n")
                process.stdin.flush()

    def wait_until_warm(self) -> list[Warm]:
        """Wait until every child has warmed up."""
        warm: dict[int, Warm] = {}
        deadline = time.monotonic() + WARM_LIMIT_S
        while len(warm) < len(self._processes):
            place, message = self._next(deadline, "warm up")
            if isinstance(message, Warm):
                warm[place] = message
        return [warm[place] for place in range(len(self._processes))]

    def collect(self, wanted_s: float) -> list[list[Window]]:
        """Return the windows of each child, until all children have trained together for this time."""
        windows: list[list[Window]] = [[] for _ in self._processes]
        deadline = time.monotonic() + 3 * wanted_s + GRACE_S
        while not all(windows) or (
            min(one[-1].end_s for one in windows) - max(one[0].start_s for one in windows) < wanted_s
        ):
            place, message = self._next(deadline, "train")
            if isinstance(message, Window):
                windows[place].append(message)
        return windows

    def end(self, windows: list[list[Window]]) -> list[Ended]:
        """Stop all children; open windows are added to `windows`."""
        self.say(STOP)
        ended: dict[int, Ended] = {}
        deadline = time.monotonic() + GRACE_S
        while len(ended) < len(self._processes):
            place, message = self._next(deadline, "stop")
            if isinstance(message, Window):
                windows[place].append(message)
            elif isinstance(message, Ended):
                ended[place] = message
        return [ended[place] for place in range(len(self._processes))]

    def _next(self, deadline: float, what: str) -> tuple[int, Message]:
        """The next message of any running child."""
        while True:
            try:
                place, message = self._heard.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise MeasurementError(f"a child did not {what} in time") from None
            if isinstance(message, Failed):
                raise MeasurementError(message.reason)
            if message is not None:
                if isinstance(message, Ended):
                    self._ended.add(place)
                return place, message
            if place not in self._ended:
                status = _status_at_end(self._processes[place].pid, time.monotonic() + END_LIMIT_S)
                raise MeasurementError(f"a child ended with {status}: {self._last_words(place)}")

    def _listen(self, place: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                self._heard.put((place, decode_message(line)))
            except ValueError as error:
                self._heard.put((place, Failed(reason=str(error))))
        self._heard.put((place, None))

    def _log(self, place: int) -> Path:
        return self._folder / f"child-{place}.log"

    def _last_words(self, place: int) -> str:
        lines = self._log(place).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def _kill(self) -> None:
        """Close the input of the children, which makes them end. Then kill the others, with their workers.

        The kill comes last, because to kill an MPS client at work may end other clients too.
        """
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        deadline = time.monotonic() + END_LIMIT_S
        for process in self._processes:
            _status_at_end(process.pid, deadline)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _status_at_end(pid: int, deadline: float) -> str:
    """Wait for a child without reaping it, and return how it ended, as text."""
    while (found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > deadline:
            return "its output closed"
        time.sleep(0.02)
    return f"{'exit code' if found.si_code == os.CLD_EXITED else 'signal'} {found.si_status}"
