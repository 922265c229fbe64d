"""Progress file of a starting broker, in the broker's key directory. Clients read the file.

The broker's process holds a shared lock on the file. Clients ignore an unlocked file: its process has died.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rlsched.files.private import make_private
from rlsched.transport.dealer import dial_address, is_loopback

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES: Final = 600


class Starting:
    """Progress report of a starting broker, until `remove_report` is called.

    If the file cannot be written, there is no report.

    Args:
        home: Key directory. Clients look for the report in the same directory.
        address: Address at which the broker will listen. For port 0 there is no report, because clients
            cannot know the port.
    """

    def __init__(self, home: Path, address: str) -> None:
        self._address, self._path, self._fd = address, _file(home, address), -1
        if address.endswith(":0"):
            return
        with suppress(OSError):
            make_private(home)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def __enter__(self) -> Starting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove_report()

    def report_step(self, what: str) -> None:
        """Report the current step in a few words."""
        if self._fd >= 0:
            line = f"{self._address}\n{what[:400]}\n".encode(errors="replace")[:_MOST_BYTES]
            with suppress(OSError):
                os.pwrite(self._fd, line.ljust(_MOST_BYTES, b"\n"), 0)

    def remove_report(self) -> None:
        """Remove the report. Call this when the broker listens, or when its start has failed."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def starting_at(home: str | os.PathLike[str], addresses: Sequence[str]) -> str:
    """Return `ADDRESS: STEP` for the first of these addresses at which a broker is starting; "": none."""
    for address in addresses:
        listens, what = _read(_file(home, address))
        dialled = dial_address(listens)
        if listens and (dialled == address or (is_loopback(dialled) and is_loopback(address))):
            return f"{address}: {what}" if what else address
    return ""


def starting_in(home: Path) -> str:
    """Return `ADDRESS: STEP` for a broker that is starting with the keys in `home`; "": none."""
    for path in sorted(home.glob(os.path.basename(_file(home, ":*")))):
        listens, what = _read(str(path))
        if listens:
            return f"{listens}: {what}" if what else listens
    return ""


def is_starting(where: str) -> str:
    """Return the error message for clients of a starting broker. `where`: result of `starting_at`."""
    return f"a broker is starting at {where}"


def _file(home: str | os.PathLike[str], address: str) -> str:
    return os.path.join(home, f"starting-{address.rpartition(':')[2]}")


def _read(path: str) -> tuple[str, str]:
    """Return (address of the starting broker, its current step) from a progress file; ("", "") if none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "", ""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lines = os.pread(fd, _MOST_BYTES, 0).decode(errors="replace").split("\n")
        return lines[0], lines[1] if len(lines) > 1 else ""
    except OSError:
        return "", ""
    finally:
        os.close(fd)
    return "", ""  # the process that wrote it has ended
