"""The terminal of a live screen: writes changed lines, reads keys, and restores the terminal at the end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Final

from rich.console import Console
from rich.text import Text

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_KEYS: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
}
_TYPED: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|\x1b|[^\x1b]")
_BEGUN: Final = re.compile(r"\x1b(\[[0-9;]*|O)?\Z")
_REST_S: Final = 0.05
"""Maximum pause within an escape sequence, seconds. After a longer pause, the key counts as Escape."""
_STOPPED = 128


def is_screen() -> bool:
    """Return whether standard output is a terminal that can show a live screen."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


class Terminal:
    """The alternate screen of the terminal on standard output, and the keys from standard input.

    Use as a context manager: the terminal is restored even after an exception or a signal.
    """

    def __init__(self) -> None:
        self._out, self._in = sys.stdout.fileno(), sys.stdin.fileno()
        self._console = Console(highlight=False)
        self._shown: list[tuple[str, int]] = []
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._modes: list[object] | None = None
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> Terminal:
        """Switch to the alternate screen."""
        for number, handler in (
            (signal.SIGWINCH, self._on_resize),
            (signal.SIGTERM, _on_end),
            (signal.SIGHUP, _on_end),
            (signal.SIGTSTP, self._on_suspend),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        with contextlib.suppress(OSError, termios.error):  # the terminal may be closed
            self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def size(self) -> tuple[int, int]:
        """Size of the terminal: columns and lines."""
        columns, lines = os.get_terminal_size(self._out)
        return max(columns, 1), max(lines, 1)

    def wake(self) -> None:
        """Make `keys` return at once. Any thread can call this."""
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are pending
            os.write(self._wake, b".")

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw these lines from the top of the screen. Lines and columns that do not fit are cut."""
        columns, height = self.size
        wanted = [self._codes(line, columns) for line in lines[:height]]
        wanted += [("", 0)] * (height - len(wanted))
        if len(self._shown) != height:
            self._shown = [("", -1)] * height
        changed = []
        for row, (line, before) in enumerate(zip(wanted, self._shown, strict=True), start=1):
            if line != before:
                rest = (
                    "\x1b[K" if line[1] < columns else ""
                )  # after a full line, the code would erase the last column
                changed.append(f"\x1b[{row};1H{line[0]}{rest}")
        self._shown = wanted
        if changed:
            self._write("".join(changed))

    def keys(self, patience_s: float) -> list[str]:
        """Wait for keys and return them. The list is empty after `patience_s` seconds or a call of `wake`."""
        asked = [self._woken, *([self._in] if self._modes is not None else [])]
        ready, _, _ = select.select(asked, [], [], patience_s)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._in not in ready:
            return []
        typed = ""
        while not typed or (_BEGUN.search(typed) and select.select([self._in], [], [], _REST_S)[0]):
            more = os.read(self._in, 64)
            if not more:
                return ["q"]  # standard input is closed
            typed += more.decode(errors="replace")
        return [_KEYS.get(one, one) for one in _TYPED.findall(typed)]

    # ---- the terminal's state ---------------------------------------------------------------------

    def _take(self) -> None:
        if os.isatty(self._in):
            self._modes = termios.tcgetattr(self._in)
            tty.setcbreak(self._in)
        self._shown = []
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        if self._modes is not None:
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._modes)  # type: ignore[arg-type]
            self._modes = None

    def _codes(self, line: Text, columns: int) -> tuple[str, int]:
        """Return (line with escape sequences for colours, cut to `columns` characters; width of the line)."""
        line = line.copy()
        line.truncate(columns, overflow="ellipsis")
        with self._console.capture() as codes:
            self._console.print(line, end="", soft_wrap=True)
        return codes.get(), line.cell_len

    def _write(self, codes: str) -> None:
        left = memoryview(codes.encode())
        while left:
            left = left[os.write(self._out, left) :]

    def _on_resize(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._shown = []
        self.wake()

    def _on_suspend(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.wake()


def _on_end(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    sys.exit(_STOPPED + signum)
