"""A base made in a process of its own, started by `background_command`.

Its arguments: the process that waits for it, the journal, before when (Unix seconds), half-life (seconds),
how many entries stay.

A `Cut`, or None, goes to standard output as MessagePack; or one line says why there is none, and the exit
code is 1. It gives way to everything else on the machine, and does not outlive its parent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from rlsched.broker.compaction.compaction import made
from rlsched.errors import RlschedError

_LOOK_S = 0.5


def main(parent: int, path: Path, before_s: float, half_life_s: float, keep_entries: int) -> int:
    """Make it and write it; returns the exit code."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        cut, code = msgspec.msgpack.encode(made(path, before_s, half_life_s, keep_entries=keep_entries)), 0
    except RlschedError as error:
        cut, code = str(error).encode(), 1
    sys.stdout.buffer.write(cut)
    return code


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(
        main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    )
