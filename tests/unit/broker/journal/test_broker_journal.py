"""The journal: durable settings, versions, locks, damage; nothing is sent before its commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import BrokerStarted, Decided, JobCancelled, NodeDown, encode_entry
from rlsched.broker.base.rows import checksum
from rlsched.broker.events import ClientAsked, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import journal_events
from rlsched.broker.server.performing import perform
from rlsched.broker.server.timekeeping import BrokerClock
from rlsched.decide.actions import Wait
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError
from rlsched.wire.messages import Ended, Hello, Launched, Submit
from tests.support.broker.hand_broker import FailingJournal, HandBroker, RecordingTransport

STARTED = BrokerStarted(epoch=1, cluster="c", version="0", policy="fifo", fallback="", order="submit")
DOWN = NodeDown(name="n0", reason="x")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "journal.sqlite"


def test_committed_facts_are_read_back_in_order(path: Path) -> None:
    journal = Journal(path)
    journal.commit([STARTED, DOWN], 1.5)
    journal.commit([], 2.0)
    journal.commit([JobCancelled(job=1, reason="y")], 2.5)
    journal.close()
    rows = read_journal(path)
    assert [(row.n, row.now_s, row.entry) for row in rows] == [
        (1, 1.5, STARTED),
        (2, 1.5, DOWN),
        (3, 2.5, JobCancelled(job=1, reason="y")),
    ]


def test_the_file_is_in_wal_mode_with_full_synchronisation(path: Path) -> None:
    journal = Journal(path)
    assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()


def test_second_broker_on_the_same_journal_is_refused(path: Path) -> None:
    first = Journal(path)
    with pytest.raises(JournalError, match="another broker holds this journal"):
        Journal(path)
    first.close()
    Journal(path).close()


def test_journal_can_be_read_while_a_broker_has_it_open(path: Path) -> None:
    journal = Journal(path)
    journal.commit([STARTED], 1.0)
    assert len(read_journal(path)) == 1
    journal.close()


def test_another_version_is_refused(path: Path) -> None:
    Journal(path).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    db.commit()
    db.close()
    with pytest.raises(JournalError, match="journal version '99', this rlsched writes 9"):
        Journal(path)
    with pytest.raises(JournalError, match="version '99'"):
        read_journal(path)


def test_another_sqlite_file_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE cats (name TEXT)")
    db.commit()
    db.close()
    with pytest.raises(JournalError, match="not a journal of rlsched"):
        Journal(path)


def test_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match="not a database"):
        Journal(path)


def test_journal_locked_by_another_program_is_one_clear_line(path: Path) -> None:
    journal = Journal(path)
    journal._db.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match=r"locked; another program") as caught:
        journal.commit([DOWN], 1.0)
    assert "\n" not in str(caught.value)
    other.execute("ROLLBACK")
    other.close()
    journal.commit([DOWN], 1.0)
    assert len(list(journal.rows())) == 1
    journal.close()


def test_full_disk_loses_nothing_that_was_committed(path: Path) -> None:
    """A real full disk: SQLite is forbidden to grow the file."""
    journal = Journal(path)
    journal.commit([STARTED], 1.0)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")
    big = [JobCancelled(job=n, reason="x" * 500) for n in range(200)]
    with pytest.raises(JournalError, match="full; free space"):
        journal.commit(big, 2.0)
    journal.close()
    assert [row.entry for row in read_journal(path)] == [STARTED]


def test_unwritable_path_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalError, match="cannot write here"):
        Journal(tmp_path / "file" / "journal.sqlite")


def test_missing_journal_is_one_clear_line(path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal here"):
        read_journal(path)
    assert not path.exists()


def test_illegal_transition_in_the_journal_is_refused(path: Path) -> None:
    journal = Journal(path)
    journal.commit([STARTED, DOWN], 1.0)
    with pytest.raises(JournalError, match="entry 2 contradicts the entries before it"):
        HandBroker(load_scheduler("fifo"), journal)
    journal.close()


def test_journal_with_changed_clocks_of_running_jobs_is_refused(
    path: Path,
) -> None:
    """Journals of brokers with `--reclock-s`, an option that was removed."""
    journal = Journal(path)
    wait = Decided(
        number=0,
        partition="shared",
        source="rule",
        action=Wait(),
        contested=False,
        guard="",
    )
    fields = msgspec.msgpack.decode(encode_entry(wait))
    fields["action"] = {"type": "set_clock", "seq": 0, "sm_clock_frac": 0.8}
    old = msgspec.msgpack.encode(fields)
    journal.commit([STARTED], 1.0)
    crc = checksum(2, 2.0, b"decided", old)
    journal._db.execute("INSERT INTO entries VALUES (2, 2.0, 'decided', ?, ?)", (old, crc))
    journal._db.execute("UPDATE meta SET value = '2' WHERE key = 'entries'")
    journal.close()
    journal = Journal(path)
    with pytest.raises(JournalError) as error:
        HandBroker(load_scheduler("fifo"), journal)
    line = str(error.value)
    assert line.startswith(
        f"{path}: entry 2: a broker before this version changed the clock of a running job"
    )
    assert "run the earlier version until all jobs have ended, then begin a new journal" in line
    assert "damaged" not in line
    assert "\n" not in line
    journal.close()


# ---- nothing is sent before its commit --------------------------------------------------------------------


def life() -> list[list[ClientAsked | NodeSaid]]:
    """Batches that make the broker reply, launch, acknowledge and end jobs."""
    submit = [ClientAsked(b"c", n, Submit(token=f"t{n}", command=["x"], num_gpus=2)) for n in range(4)]
    return [
        [submit[0]],
        [NodeSaid("n0", 0, Hello(name="n0", gpus=4))],
        [submit[1], submit[2]],
        [NodeSaid("n0", 0, Launched(job=1, attempt=1, rank=0, pid=1))],
        [NodeSaid("n0", 0, Ended(job=1, attempt=1, rank=0, exit_code=0)), submit[3]],
        [NodeSaid("n0", 0, Ended(job=2, attempt=1, rank=0, exit_code=3))],
    ]


def live(journal: Journal) -> tuple[list[RecordingTransport], JournalError | None]:
    """Messages sent in each batch of `life`, up to the batch whose commit failed."""
    broker = HandBroker(load_scheduler("fifo-backfill"), journal)
    sent: list[RecordingTransport] = []
    for events in life():
        broker.sent = RecordingTransport()
        sent.append(broker.sent)
        try:
            broker.batch(events)
        except JournalError as error:
            return sent, error
    return sent, None


@pytest.mark.parametrize("failing", range(1, 7))
def test_no_reply_and_no_launch_is_sent_before_its_commit(tmp_path: Path, failing: int) -> None:
    healthy = Journal(tmp_path / "healthy.sqlite")
    expected, _ = live(healthy)
    healthy.close()
    assert all(one.replies or one.orders for one in expected[:3]), "the batches have output"

    journal = FailingJournal(tmp_path / "journal.sqlite", fail_from=failing)
    sent, error = live(journal)
    journal.close()
    assert error is not None
    assert "full" in str(error)
    assert (sent[-1].replies, sent[-1].orders) == ([], [])
    assert len(sent) == failing
    for batch in range(failing - 1):
        assert sent[batch].replies == expected[batch].replies
        assert sent[batch].orders == expected[batch].orders
    kept = read_journal(tmp_path / "journal.sqlite")
    assert [row.entry for row in kept] == [row.entry for row in read_journal(tmp_path / "healthy.sqlite")][
        : len(kept)
    ]


def test_effects_are_performed_in_the_machines_order(path: Path) -> None:
    journal = Journal(path)
    broker = HandBroker(load_scheduler("fifo"), journal)
    effects = broker.machine.handle_batch([life()[0][0]], broker.now_s + 1)
    order: list[str] = []

    class Spy(RecordingTransport):
        def reply(self, *_: object) -> None:
            order.append("reply")

    class SpyJournal:
        def commit(self, *_: object) -> None:
            order.append("commit")

    perform(effects, broker.now_s + 1, SpyJournal(), Spy())
    assert order == ["commit", "reply"]
    journal.close()


# ---- clock, replay ----------------------------------------------------------------------------------------


def test_clock_advances_by_at_least_a_millisecond_and_never_backwards() -> None:
    elapsed = iter([10.0, 10.0, 10.0, 10.0004, 11.0])
    clock = BrokerClock(500.0, wall=lambda: 100.0, elapsed=lambda: next(elapsed))
    assert [clock.read() for _ in range(4)] == [500.001, 500.002, 500.003, 501.0]


def test_clock_starts_at_wall_time_in_whole_milliseconds() -> None:
    elapsed = iter([0.0, 1.23456])
    clock = BrokerClock(0.0, wall=lambda: 1_795_000_000.0, elapsed=lambda: next(elapsed))
    assert clock.read() == 1_795_000_001.235


def test_journal_can_be_read_as_instants_for_a_simulator(path: Path) -> None:
    journal = Journal(path)
    live(journal)
    journal.close()
    events = journal_events(path)
    assert [type(change).__name__ for instant in events.instants for change in instant.changes] == [
        "JobSubmitted",
        "NodeUp",
        "JobSubmitted",
        "JobSubmitted",
        "AttemptOver",
        "JobSubmitted",
        "AttemptOver",
    ]
    assert [decision.number for decision in events.decisions] == [0, 1, 2, 3]
    assert events.seq_of == {1: 0, 2: 1, 3: 2, 4: 3}
    assert [start.epoch for start in events.starts] == [1]
    times = [instant.now_s for instant in events.instants]
    assert times == sorted(set(times))


def test_last_checksum_is_that_of_the_row_without_reading_it(path: Path) -> None:
    journal = Journal(path)

    def stored_crc() -> int:
        found: tuple[int] = journal._db.execute("SELECT crc FROM entries WHERE n = 3").fetchone()
        return found[0]

    journal.commit([STARTED, DOWN], 1.5, [])
    journal.commit([JobCancelled(job=1, reason="y")], 2.5, [])
    asked: list[str] = []
    journal._db.set_trace_callback(asked.append)
    crc = journal.checksum_of(3)
    journal._db.set_trace_callback(None)
    assert crc == stored_crc()
    assert asked == []
    journal.put_base([DOWN], 3, 2.5)  # another row has this number now
    assert journal.checksum_of(3) == stored_crc() != crc
    journal.close()


def test_one_statement_moves_both_marks_of_a_commit(path: Path) -> None:
    """The number of the last entry, and the number up to which the table of ended jobs is complete."""
    journal = Journal(path)
    journal.commit([STARTED], 1.5, [])
    journal.commit([DOWN], 2.5)  # does not list the ended jobs
    journal.commit([DOWN], 3.5, [])
    journal.close()
    reopened = Journal(path)
    assert (reopened.last, reopened.ended_at) == (3, 1)
    reopened.close()
