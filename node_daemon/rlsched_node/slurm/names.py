"""Names of the job's nodes for scripts and tasks: names or addresses at which other nodes reach them."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence

LOOK_UP_S = 2.0
"""Maximum time for looking up all names, seconds."""
MAX_LOOK_UPS = 32
"""Maximum number of names that are looked up at the same time."""


def addresses_of(name: str) -> frozenset[str]:
    """Return the addresses of a host; empty if it has none."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return frozenset()


def reachable_names(
    nodes: Sequence[str],
    hosts: Sequence[str],
    look_up: Callable[[str], frozenset[str]] = addresses_of,
    within_s: float = LOOK_UP_S,
) -> list[str]:
    """Return the name or address of each node for scripts.

    Scripts resolve these names, above all the name of the first node. A node keeps its name if its entry in
    `hosts` is "", or if name and entry have an address in common. Otherwise, the result has the entry of
    `hosts`. If several nodes have the same entry, as on a single machine, only the first node gets it.

    Args:
        nodes: Names of the nodes.
        hosts: Names or addresses at which other nodes reach each node; "": unknown.
        look_up: Function that returns the addresses of a host.
        within_s: Maximum time for all look-ups, seconds; a name that is not found by then has no addresses.

    Raises:
        OSError: no thread can be created for the look-ups.
    """
    found: dict[str, frozenset[str]] = {}
    waiting = [name for name in {*nodes, *hosts} if name]
    if any(host and host != node for node, host in zip(nodes, hosts, strict=True)):
        _look_up_all(waiting, found, look_up, within_s)
    names: list[str] = []
    for node, host in zip(nodes, hosts, strict=True):
        is_own = host in ("", node) or found.get(node, frozenset()) & found.get(host, frozenset())
        names.append(node if is_own or host in names else host)
    return names


def _look_up_all(
    waiting: list[str],
    found: dict[str, frozenset[str]],
    look_up: Callable[[str], frozenset[str]],
    within_s: float,
) -> None:
    """Look up all names in `waiting`, at most `within_s` seconds. Store their addresses in `found`.

    Raises:
        OSError: no thread can be created.
    """
    left = threading.Semaphore(0)
    number = len(waiting)

    def work() -> None:
        while True:
            try:
                name = waiting.pop()
            except IndexError:
                return
            found[name] = look_up(name)
            left.release()

    timer = threading.Timer(within_s, left.release, (number,))
    timer.daemon = True
    try:
        for _ in range(min(number, MAX_LOOK_UPS)):
            threading.Thread(target=work, daemon=True).start()
        timer.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    for _ in range(number):
        left.acquire()
    timer.cancel()
