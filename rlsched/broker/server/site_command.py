"""Runs a command of the operator as a process, without waiting for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from rlsched.terminal.visible import visible

_TAIL_BYTES: Final = 4096


class SiteCommand:
    """A running command of the operator. If the broker exits, the command continues.

    Args:
        words: Program and arguments.
        most_s: Time after which the command and its process group are killed, seconds.
        elapsed: A monotonic clock, seconds.
        output: File for the standard output; None: the output is used only in error texts.

    Raises:
        OSError: the program cannot be run.
    """

    def __init__(
        self,
        words: Sequence[str],
        most_s: float,
        elapsed: Callable[[], float],
        output: IO[Any] | None = None,
    ) -> None:
        self._elapsed, self._until_s = elapsed, elapsed() + most_s
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the command has ended
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._said if output is None else output,
                stderr=self._said,
                start_new_session=True,
            )
        except OSError:
            self._said.close()
            raise

    def error(self) -> str | None:
        """Return None while the command runs, "" after a success, else the error in one line.

        A command that runs longer than `most_s` is killed. Do not call this again after it has returned a
        text.
        """
        code = self._process.poll()
        late = code is None and self._elapsed() >= self._until_s
        if late:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        if code is None:
            return None
        with self._said:
            error = "took too long and was killed" if late else f"exit code {code}" if code else ""
            return _with_tail(error, self._said)


def _with_tail(error: str, output: IO[Any]) -> str:
    """Return `error` with the last line of the command's output appended; "" if `error` is ""."""
    if not error:
        return ""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(size - _TAIL_BYTES, 0))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return f"{error}: {visible(lines[-1])}" if lines else error
