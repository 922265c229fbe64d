"""Process that makes a base, started by `background_command`.

Arguments: journal, time of the cut (Unix seconds), half-life (seconds), number of
entries to keep.

Standard output receives a `Cut`, or None, as MessagePack; on an error it receives one line, and the exit code
is 1. The process runs at the lowest priority, and ends with its parent.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from rlsched.broker.compaction.compaction import made
from rlsched.errors import RlschedError


def main(path: Path, before_s: float, half_life_s: float, keep_entries: int) -> int:
    """Make the base and write it; returns the exit code."""
    try:
        cut, code = msgspec.msgpack.encode(made(path, before_s, half_life_s, keep_entries=keep_entries)), 0
    except RlschedError as error:
        cut, code = str(error).encode(), 1
    sys.stdout.buffer.write(cut)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
