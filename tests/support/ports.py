"""Ports of this machine for a test's own servers.

The kernel may give a port that it chose for port 0 to any other connection as soon as it is free. These ports
lie below the kernel's range, so that none is taken by chance, and each worker has its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST: Final = 10_000
EACH: Final = 1_000
"""Ports of a worker; `node_daemon/rlsched_node/processes/launch.py` uses ports from 20,000 on."""
WORKERS: Final = 10
_next = itertools.count(os.getpid())


def free_ports(count: int) -> list[int]:
    """Ports at which no process listens; none is returned a second time soon."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    found: list[int] = []
    while len(found) < count:
        port = FIRST + EACH * worker + next(_next) % EACH
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def free_addresses(count: int) -> list[str]:
    """The same as addresses."""
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count)]
