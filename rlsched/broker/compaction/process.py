"""The process that makes a base (state that replaces old entries), started by `background_command`.

The arguments are as in `compaction.made`. The process writes a `Cut` as MessagePack to standard output, or
None if a base would save no space. On an error, it writes one line of text instead, and exits with code 1. It
runs at the lowest priority, and is killed if its parent exits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from rlsched.broker.compaction.compaction import made
from rlsched.errors import RlschedError


def main(path: Path, before_s: float, half_life_s: float, keep_entries: int) -> int:
    """Write a journal's base, or an error text, to standard output. Return the exit code."""
    try:
        cut, code = msgspec.msgpack.encode(made(path, before_s, half_life_s, keep_entries=keep_entries)), 0
    except RlschedError as error:
        cut, code = str(error).encode(), 1
    sys.stdout.buffer.write(cut)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
