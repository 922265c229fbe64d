"""Pieces of a growing output, progress of a copy, and what a limit may drop before it is copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched_node.processes import output, streams
from rlsched_node.processes.output import MOST_KEPT, OutputBound
from rlsched_node.processes.streams import (
    ALL_COPIED,
    Copy,
    Follower,
    copied_bytes,
    copies_of,
    read_progress,
    write_progress,
)

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "output.log"
    path.touch()
    return path


@pytest.fixture
def fd(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDWR | os.O_APPEND)
    yield fd
    os.close(fd)


def test_which_files_are_copied() -> None:
    assert copies_of({"cwd": "/w"}) == [], "a record of an older daemon"
    assert copies_of({"cwd": "/w", "output": "a"}) == [Copy("output.log", "a", "--output")]
    assert copies_of({"cwd": "/w", "output": "a", "error": "/w/x/../a"}) == [
        Copy("output.log", "a", "--output")
    ]
    assert copies_of({"cwd": "/w", "error": "b"}) == [Copy("stderr.log", "b", "--error")]
    assert copies_of({"cwd": "/w", "output": "a", "error": "b"}) == [
        Copy("stdout.log", "a", "--output"),
        Copy("stderr.log", "b", "--error"),
    ]


def test_whole_lines_wait_for_their_end_but_not_for_long(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(fd, is_whole=True)
    os.write(fd, b"one\ntw")
    assert follower.piece() == b"one\n"
    follower.advance(4)
    assert follower.piece() == b""
    os.write(fd, b"o\nthree")
    assert follower.piece() == b"two\n"
    follower.advance(4)
    assert follower.piece() == b""
    assert follower.piece(is_last=True) == b"three"
    monkeypatch.setattr(streams, "HOLD_S", 0.0)
    assert follower.piece() == b"three"
    follower.advance(5)
    assert follower.piece(is_last=True) == b""


def test_dropped_part_is_a_line(fd: int) -> None:
    os.write(fd, b"x" * MIB)
    follower = Follower(fd, 100)
    if not output._punch_hole(fd, 0, MIB // 2):
        pytest.skip("no holes in this file system")
    said = b"\nrlsched: %d bytes of output were dropped here\n" % (MIB // 2 - 100)
    assert follower.piece() == said
    follower.advance(10)
    assert follower.piece() == said[10:]
    follower.advance(len(said) - 10)
    assert follower.offset == MIB // 2
    assert follower.piece()[:9] == b"x" * 9


def test_part_that_is_dropped_while_it_is_read_is_not_copied_as_zeros(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.write(fd, b"x" * MIB)
    if not output._punch_hole(fd, 0, MIB // 2):
        pytest.skip("no holes in this file system")
    monkeypatch.setattr(streams, "read_piece", lambda *_: (b"\0" * 4096, 0, False))
    assert Follower(fd).piece() == b""


def test_emptied_output_is_read_from_its_start(file: Path, fd: int) -> None:
    os.write(fd, b"before\n")
    follower = Follower(fd, 7)
    file.write_bytes(b"new\n")
    assert follower.piece() == b"new\n"


def test_progress_is_read_by_the_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert copied_bytes("output.log") == 0, "the copier has not started yet"
    fd = os.open("output.log.copied", os.O_RDWR | os.O_CREAT)
    assert copied_bytes("output.log") == 0
    write_progress(fd, 17)
    assert copied_bytes("output.log") == 17
    write_progress(fd, ALL_COPIED, "Permission denied")
    assert read_progress(os.pread(fd, 64, 0)) == copied_bytes("output.log") == ALL_COPIED
    os.close(fd)


@pytest.mark.parametrize("has_holes", [True, False])
def test_limit_drops_only_what_has_been_copied(
    file: Path, fd: int, monkeypatch: pytest.MonkeyPatch, has_holes: bool
) -> None:
    if not has_holes:
        monkeypatch.setattr(output, "_punch_hole", lambda *_: False)
    copied = 0
    bound = OutputBound(str(file), MIB, lambda: copied)
    text = os.urandom(2 * MIB)
    os.write(fd, text)
    bound.enforce(is_last=True)
    assert file.read_bytes() == text
    copied = MIB
    bound.enforce(is_last=True)
    assert file.read_bytes()[MIB:] == text[MIB:]
    if has_holes:
        assert file.stat().st_blocks * 512 < 3 * MIB // 2
    os.write(fd, b"x" * (MOST_KEPT * MIB))
    bound.enforce(is_last=True)
    assert file.stat().st_blocks * 512 <= MIB, "a copier that hangs does not fill the disk"
