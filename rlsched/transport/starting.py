"""A broker that starts says so beside its keys: those who ask before it listens are told what it does.

Whoever starts one holds a shared lock on the file. The kernel lets go of it for one that dies, and what
stands there then counts no more.
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
    """A broker is starting, until `over`. A file that cannot be written is nobody's trouble.

    Args:
        home: The key directory, which clients have too.
        address: Where it will listen; one with port 0 is not known to anybody.
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
        self.over()

    def say(self, what: str) -> None:
        """It does this now, in a few words."""
        if self._fd >= 0:
            line = f"{self._address}\n{what[:400]}\n".encode(errors="replace")[:_MOST_BYTES]
            with suppress(OSError):
                os.pwrite(self._fd, line.ljust(_MOST_BYTES, b"\n"), 0)

    def over(self) -> None:
        """It listens, or has given up."""
        if self._fd >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def starting_at(home: str | os.PathLike[str], addresses: Sequence[str]) -> str:
    """Which broker of these addresses is starting, and what it does: `tcp://...: ...`; "" where none is."""
    for address in addresses:
        listens, what = _read(_file(home, address))
        dialled = dial_address(listens)
        if listens and (dialled == address or (is_loopback(dialled) and is_loopback(address))):
            return f"{address}: {what}" if what else address
    return ""


def starting_in(home: Path) -> str:
    """Which broker of these keys is starting, whatever its address, as `starting_at` says it."""
    for path in sorted(home.glob(os.path.basename(_file(home, ":*")))):
        listens, what = _read(str(path))
        if listens:
            return f"{listens}: {what}" if what else listens
    return ""


def is_starting(where: str) -> str:
    """What to tell those who ask for a broker that is starting; `where`: as `starting_at` says it."""
    return f"a broker is starting at {where}"


def _file(home: str | os.PathLike[str], address: str) -> str:
    return os.path.join(home, f"starting-{address.rpartition(':')[2]}")


def _read(path: str) -> tuple[str, str]:
    """(where it will listen, what it does); empty where nobody starts one."""
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
    return "", ""  # whoever wrote it is gone
