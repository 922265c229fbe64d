"""Damage to the journal: no flipped bit yields another history; each refusal is one line with the remedy."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.broker.base.entries import BrokerStarted, JobCancelled, NodeDown
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError
from tests.support.broker.hand_broker import HandBroker

SAMPLE = Path(__file__).parents[3] / "samples" / "journal" / "version-1.sqlite"
STARTED = BrokerStarted(epoch=1, cluster="c", version="0", policy="fifo", fallback="", order="submit")


def fill(journal: Journal) -> None:
    journal.commit([STARTED], 1.0)
    for batch in range(40):
        entries = [JobCancelled(job=batch * 5 + n, reason="by its user " * (n + 1)) for n in range(5)]
        journal.commit([NodeDown(name=f"n{batch}", reason="no heartbeat"), *entries], 2.0 + batch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal that was closed."""
    path = tmp_path_factory.mktemp("whole") / "journal.sqlite"
    journal = Journal(path)
    fill(journal)
    journal.close()
    return path


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal whose broker was killed: most of its entries are in the write-ahead log."""
    path = tmp_path_factory.mktemp("live") / "journal.sqlite"
    journal = Journal(path)
    fill(journal)
    copy = path.parent / "crashed" / path.name
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    journal.close()
    return copy


def reopened(path: Path) -> list[JournalRow] | str:
    """Result of opening a journal: its rows, or the line of the refusal."""
    try:
        journal = Journal(path)
        try:
            return list(journal.rows())
        finally:
            journal.close()
    except JournalError as error:
        return str(error)


def damage(source: Path, target: Path, suffix: str, change: Callable[[bytearray], None]) -> None:
    """A copy of a journal, with one of its files changed."""
    for other in ("", "-wal", "-shm"):
        target.with_name(target.name + other).unlink(missing_ok=True)
        if Path(f"{source}{other}").exists():
            shutil.copy(f"{source}{other}", f"{target}{other}")
    file = Path(f"{target}{suffix}")
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


def flipped(bit: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[bit // 8] ^= 1 << bit % 8

    return change


def is_clear(line: str, path: Path) -> bool:
    return line.startswith(str(path)) and "\n" not in line and ("restore" in line or "choose another" in line)


def test_flipped_bit_of_a_journal_yields_no_other_history(whole: Path, tmp_path: Path) -> None:
    expected, bits = reopened(whole), 8 * whole.stat().st_size
    refused = 0
    for bit in random.Random(14).sample(range(bits), 400):
        path = tmp_path / "journal.sqlite"
        damage(whole, path, "", flipped(bit))
        found = reopened(path)
        if isinstance(found, str):
            assert is_clear(found, path), (bit, found)
            refused += 1
        else:
            assert found == expected, f"bit {bit} yields another history"
    assert refused > 100


def test_flipped_bit_of_a_write_ahead_log_yields_no_other_history(crashed: Path, tmp_path: Path) -> None:
    """Except in its last commit, which looks like a write that a power loss cut short."""
    log = Path(f"{crashed}-wal")
    step = 24 + 4096
    frames = (log.stat().st_size - 32) // step
    data = log.read_bytes()
    commits = [n for n in range(frames) if int.from_bytes(data[32 + n * step + 4 : 32 + n * step + 8], "big")]
    damage(crashed, tmp_path / "copy.sqlite", "", lambda _: None)
    expected = reopened(tmp_path / "copy.sqlite")
    assert len(expected) == 1 + 40 * 6
    before_last = 8 * (32 + (commits[-2] + 1) * step)
    for bit in [*random.Random(15).sample(range(before_last), 120), *range(128, 256, 8)]:
        path = tmp_path / "journal.sqlite"
        damage(crashed, path, "-wal", flipped(bit))
        found = reopened(path)
        if isinstance(found, str):
            assert is_clear(found, path), (bit, found)
        else:
            assert found == expected, f"bit {bit} yields another history"


def test_write_ahead_log_cut_short_loses_only_the_last_commit(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    damage(crashed, path, "-wal", lambda data: data.__delitem__(slice(len(data) - 100, None)))
    found = reopened(path)
    assert not isinstance(found, str)
    assert len(found) == 1 + 39 * 6


def test_truncated_journal_is_refused_in_one_line(whole: Path, tmp_path: Path) -> None:
    size = whole.stat().st_size
    for left in [*range(512, size, 2048), size - 1, size - 100]:
        path = tmp_path / "journal.sqlite"
        damage(whole, path, "", lambda data, left=left: data.__delitem__(slice(left, None)))
        found = reopened(path)
        assert isinstance(found, str)
        assert is_clear(found, path), (left, found)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("UPDATE entries SET payload = replace(payload, x'6e37', x'6e38') WHERE n = 44", "entry 44: damaged"),
        ("UPDATE entries SET now_s = now_s + 1 WHERE n = 9", "entry 9: damaged: its checksum"),
        ("UPDATE entries SET now_s = 'soon' WHERE n = 9", "entry 9: damaged: its columns"),
        ("UPDATE entries SET kind = x'ff' WHERE n = 9", "entry 9: damaged: its checksum"),
        ("DELETE FROM entries WHERE n = 7", "entry 7 is missing"),
        ("DELETE FROM entries WHERE n > 200", "expected 241 entries, found 200"),
        ("UPDATE meta SET value = 'many' WHERE key = 'entries'", "its number of entries reads 'many'"),
        ("DROP TABLE entries", "no such table"),
    ],
)
def test_damaged_entry_is_named(whole: Path, tmp_path: Path, change: str, line: str) -> None:
    path = tmp_path / "journal.sqlite"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    found = reopened(path)
    assert isinstance(found, str)
    assert line in found
    assert is_clear(found, path)
    with pytest.raises(JournalError, match=line):
        read_journal(path)


# ---- versions ---------------------------------------------------------------------------------------------


def test_journal_of_version_1_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    shutil.copy(SAMPLE, path)
    before = read_journal(path)
    assert len(before) == 22
    first = reopened(path)
    assert first == before
    with sqlite3.connect(path) as db:
        assert dict(db.execute("SELECT key, value FROM meta")) == {
            "version": "9",
            "first": "1",
            "entries": "22",
            "ended_at": "0",
        }
    db.close()
    journal = Journal(path)
    broker = HandBroker(load_scheduler("fifo-backfill"), journal)
    assert broker.state.epoch == 3
    states = {1: "failed", 2: "running", 3: "queued", 4: "queued", 5: "failed", 6: "running"}
    assert {job.number: job.state for job in broker.state.jobs.values()} == states
    journal.close()


def test_damaged_journal_of_version_1_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    shutil.copy(SAMPLE, path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET payload = x'c1' WHERE n = 20")
    db.close()
    found = reopened(path)
    assert isinstance(found, str)
    assert "entry 20: damaged" in found
    assert "stays a journal of version 1" in found
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() == ("1",)
        assert db.execute("SELECT count(*) FROM entries").fetchone() == (22,)
    db.close()
