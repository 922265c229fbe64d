"""The process that makes a base, started by `background_command`.

Arguments: process id of the parent, journal, time of the cut (Unix seconds), half-life (seconds), number of
entries to keep.

The process writes a `Cut`, or None, as MessagePack to standard output. On an error it writes one line
instead, and ends with exit code 1. It runs at the lowest priority, and ends with its parent.
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
    """Make the base and write it to standard output. Return the exit code."""
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
