"""A clock for separate processes that a test moves ahead: by `moved_clock.c`, which is preloaded."""

from __future__ import annotations

import ctypes
import mmap
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("moved_clock.c")
needs_moved_clock = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc to compile the moved clock"
)


class MovedClock:
    """A clock of all processes that run `python`. It starts at the kernel's time.

    Args:
        directory: Holds the library, the number of nanoseconds and `python`.

    Attributes:
        python: An interpreter under the moved clock, also for the interpreters that it starts: its
            `sys.executable` is `python` itself. Jobs of a node have an environment of their own, and the
            kernel's clock.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        library, file = directory / "moved_clock.so", directory / "nanoseconds"
        words = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-o",
            str(library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(words, check=True)
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), mmap.PAGESIZE)
        self._moved_ns = ctypes.c_int64.from_buffer(self._page)
        self.python = directory / "python"
        words = ["env", f"LD_PRELOAD={library}", f"MOVED_CLOCK={file}", sys.executable]
        self.python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        self.python.chmod(0o755)

    @property
    def moved_s(self) -> float:
        """Seconds by which the clock is ahead of the kernel's."""
        return self._moved_ns.value / 1e9

    def advance(self, seconds: float) -> None:
        """Move the clock ahead. Processes see it when they next read the time."""
        self._moved_ns.value += round(seconds * 1e9)

    def command(self, program: str, *args: str) -> list[str]:
        """A Python program under this clock, as words of a command."""
        own = f"import sys; sys.executable = {os.fspath(self.python)!r}; "
        return [str(self.python), "-c", own + program, *args]
