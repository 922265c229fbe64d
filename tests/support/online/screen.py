"""A terminal of 80 columns: tmux runs a shell in it, the test types, and reads the screen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.online.cluster import until

NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
COLUMNS, LINES = 80, 24
PROMPT = "ready>"


class Screen:
    """A tmux server of its own, with one window.

    Args:
        folder: Directory of its socket and of the recorded output.
        env: Variables added to the environment of the test.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._socket, self._written = str(folder / "tmux"), folder / "written"
        names = ("NO_COLOR", "COLUMNS", "LINES", "TMUX")
        self._env = {name: value for name, value in os.environ.items() if name not in names}
        self._env |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "screen-256color", **env}
        (folder / "profile").write_text(f"PS1='{PROMPT}'\n", encoding="utf-8")
        self._env["ENV"] = str(folder / "profile")
        self._env["PATH"] = f"{Path(sys.executable).parent}:{self._env['PATH']}"
        size = ("-x", str(COLUMNS), "-y", str(LINES))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "sh")
        self._tmux("pipe-pane", f"cat >> {self._written}")
        self.until(rf"(?m)^{PROMPT}")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60.0,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        """End all programs in it."""
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False)

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def keys(self, *keys: str) -> None:
        """Keys in tmux notation."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Resize as a terminal window does."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def text(self, *options: str) -> str:
        """Text on the screen."""
        return self._tmux("capture-pane", "-p", *options)

    def until(self, pattern: str, patience_s: float = 60.0) -> str:
        """Wait until a text is on the screen. Returns the screen."""
        found = [""]

        def look() -> bool:
            found[0] = self.text()
            return re.search(pattern, found[0]) is not None

        try:
            until(look, f"the screen has {pattern!r}", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it has:\n{self.text()}") from None
        return found[0]

    def run(self, line: str, patience_s: float = 60.0) -> str:
        """Type a line on an empty screen and wait for its end. Returns its output, including lines that
        scrolled away.
        """
        self.type("clear; echo clean")
        self.until(rf"\Aclean\n{PROMPT}\s*\Z")  # output that is typed before that is not shown afterwards
        self._tmux("clear-history")
        self.type(f"{line}; echo ended $?")
        self.until(r"(?m)^ended \d+", patience_s)
        return self.text("-S", "-")

    def wraps(self) -> list[str]:
        """Lines that are longer than the terminal is wide, including those above the screen."""
        whole = self.text("-J", "-S", "-").splitlines()
        return [line for line in whole if len(line.rstrip()) > COLUMNS and not line.startswith(PROMPT)]

    def state(self) -> tuple[str, str]:
        """(whether the alternate screen is shown, whether the cursor is)."""
        alternate, cursor = self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split()
        return alternate, cursor

    def modes(self) -> str:
        """A checksum of all settings of the terminal."""
        shown = self.run("stty -g | cksum")
        said = re.search(r"(?m)^\d+ \d+$", shown)
        assert said is not None, shown
        return said[0]

    def written(self) -> bytes:
        """All output of programs to the terminal so far."""
        return self._written.read_bytes() if self._written.exists() else b""
