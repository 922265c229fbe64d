"""Limit on a rank's output: the parts that are kept, the note, and reading in pieces."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rlsched_node.processes import output
from rlsched_node.processes.output import CUT, OutputBound, read_piece
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import AttemptDir, AttemptStore
from tests.support.online.ranks import KEY, collect, start

LINES = 1_000_000
MIB = 1 << 20


def all_pieces(directory: AttemptDir, max_bytes: int = 1 << 16) -> list[tuple[int, bytes]]:
    """Pieces that `rlsched logs` reads: (offset, piece)."""
    pieces, offset = [], 0
    while True:
        data, start_, _ = directory.read_output(offset, max_bytes)
        if not data:
            return pieces
        pieces.append((start_, data))
        offset = start_ + len(data)


def test_endless_output_keeps_its_first_and_last_part(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "seq", str(LINES), max_output_mib=1)
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    file = (directory.path / "output.log").stat()
    assert file.st_size == sum(len(str(number)) + 1 for number in range(1, LINES + 1)), (
        "offsets do not change"
    )
    assert file.st_blocks * 512 <= MIB
    pieces = all_pieces(directory)
    text = b"".join(data for _, data in pieces)
    assert b"\0" not in text
    first, said, last = re.split(rb"\nrlsched: (\d+) bytes of output were dropped here *\n", text)
    assert first.split(b"\n")[:3] == [b"1", b"2", b"3"]
    assert last.endswith(b"\n999999\n1000000\n")
    assert len(first) + int(said) + len(last) == file.st_size
    assert min(len(first), len(last)) > MIB // 5
    assert [start_ + len(data) for start_, data in pieces][-1] == file.st_size


def test_output_below_the_limit_is_unchanged(ranks: LiveRanks, store: AttemptStore) -> None:
    directory = start(ranks, store, "sh", "-c", "seq 100000; echo $$", max_output_mib=1)
    collect(ranks, Exited)
    assert len(all_pieces(directory)) > 1
    assert b"".join(data for _, data in all_pieces(directory)).startswith(b"1\n2\n")
    assert b"rlsched" not in b"".join(data for _, data in all_pieces(directory))


@pytest.mark.parametrize("has_holes", [True, False])
def test_output_continues_after_the_dropped_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_holes: bool
) -> None:
    """Also on a file system without holes, where the file is shortened and readers get a note."""
    if not has_holes:
        monkeypatch.setattr(output, "_punch_hole", lambda *_: False)
    path = tmp_path / "output.log"
    path.touch()
    bound = OutputBound(str(path), MIB)
    writer = os.open(path, os.O_WRONLY | os.O_APPEND)
    reader = os.open(path, os.O_RDONLY)
    for turn in range(4):
        os.write(writer, b"%d" % turn * MIB)
        bound.enforce(is_last=True)
    seen = os.fstat(reader).st_size
    os.write(writer, b"the end\n")
    assert os.fstat(reader).st_blocks * 512 < MIB
    assert b"were dropped here" in os.pread(reader, MIB // 4, 0)
    if has_holes:
        assert read_piece(reader, seen, 99) == (b"the end\n", seen, True)
        assert read_piece(reader, MIB, 99)[1] == seen - MIB // 2, "across the hole"
    else:
        assert read_piece(reader, seen, 99) == (b"the end\n", seen, True)
        size = os.fstat(reader).st_size
        assert read_piece(reader, -4, 99) == (b"end\n", size - 4, True), "from the end"
        assert read_piece(reader, 4 * MIB, 99) == (CUT, size - len(CUT), True)
    os.close(writer)
    os.close(reader)
