"""A compacted journal: its content, its readers, and the state after a crash."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlsched.broker.base.entries import BasePart
from rlsched.broker.compaction import compacting
from rlsched.broker.compaction.compacting import Compacting
from rlsched.broker.compaction.compaction import DAY_S, Cut, made, put
from rlsched.broker.compaction.keeping import GROWN, Keeps
from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.recovery import recover_state, remake_ended
from rlsched.broker.journal.replay import JOURNAL_FILE, journal_events
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.standby.warm import JournalFollower, Warm
from rlsched.broker.state.base import Base, base_at_the_head, read_base, write_base
from rlsched.broker.state.base_ledger import BURST_FIELDS, JOB_DERIVED, JOB_FIELDS
from rlsched.broker.state.predictions import Predictions
from rlsched.cli.main import run
from rlsched.cluster.arrays import JOB
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError
from rlsched.notify.following import CursorFile
from rlsched.notify.following import NoticeFollower as Notifier
from rlsched.wire.messages import AttemptReport, DrainNode, Ended, Heartbeat, Held, Hello, Holding, RankUsage
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.online.cluster import RLSCHED

SAMPLES = Path(__file__).parents[3] / "samples" / "journal"
DAY_1_S = 1_000.0 + DAY_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker" / JOURNAL_FILE


def with_history(path: Path, jobs: int = 5, *, lasts: bool = True) -> HandBroker:
    """A broker with yesterday's jobs, of which the last still runs, and one job of today."""
    broker = make(Journal(path))
    broker.says("n0", hello("n0"))
    for job in range(1, jobs + 1):
        broker.ask(submit(1, token=f"old{job}", notify="end"))
        broker.says("n0", launched(job))
        if job < jobs or not lasts:
            broker.says("n0", ended(job))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1, token="new"))
    broker.says("n0", launched(jobs + 1))
    broker.says("n0", ended(jobs + 1))
    return broker


def compact(path: Path, *, drop: bool = True) -> Cut:
    cut = made(path, DAY_1_S)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
        while drop and journal.drop(3):
            pass
    return cut


def first_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT min(n) FROM entries").fetchone()[0])


def last_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT max(n) FROM entries").fetchone()[0])


def reopened(path: Path) -> list[tuple[int, str]]:
    with closing(Journal(path)) as journal:
        state = recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo-backfill"))
        return [(number, job.state) for number in range(1, 9) if (job := state.job(number)) is not None]


def test_old_entries_are_dropped_and_nothing_is_lost(path: Path) -> None:
    with_history(path).journal.close()
    before, known = len(read_journal(path)), reopened(path)
    compact(path)
    assert len(read_journal(path)) < before - 10
    assert first_of(path) == read_journal(path)[0].n > 1
    assert reopened(path) == known
    assert known == [(n, "completed") for n in (1, 2, 3, 4)] + [(5, "running"), (6, "completed")]
    report = check(path)
    assert (report.damage, report.derived, report.next_job) == ([], [], 7)
    assert report.jobs == {"completed": 5, "running": 1}
    broker = make(Journal(path))
    assert broker.state.epoch == 2
    assert getattr(broker.ask(submit(1, token="old2")), "job", None) == 2, "its token is known"
    broker.says("n0", hello("n0"))
    assert getattr(broker.ask(submit(1)), "job", None) == 7
    broker.journal.close()


def test_base_holds_usage_of_jobs_and_predictions(path: Path) -> None:
    usage = RankUsage(measured_s=60, energy_mj=12_000_000, gpu_milli=700, gpu_memory_mib=9_000)
    broker = make(Journal(path))
    broker.says("n0", hello("n0"))
    for job in (1, 2):
        broker.ask(submit(1, user="ann"))
        broker.says("n0", launched(job))
        reason = "node_stopped" if job == 2 else ""
        broker.says("n0", Ended(job=job, attempt=1, rank=0, exit_code=job - 1, reason=reason, usage=usage))
    broker.says("n0", launched(2, attempt=2))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1, user="ann", token="new"))
    learnt = broker.state.profiles.kept_profiles()
    assert learnt
    broker.journal.close()
    compact(path)
    again = make(Journal(path))
    assert again.state.profiles.kept_profiles() == learnt
    assert again.state.jobs[2].energy_j == 12_000.0, "of its first attempt"
    assert again.state.jobs[3].spec.profiles["generic"].known_figures()["memory_mib"].count == 2
    again.ask(submit(1, user="ann"))
    assert again.state.jobs[4].spec.profiles == again.state.jobs[3].spec.profiles
    again.journal.close()


def test_base_holds_gpus_of_foreign_processes(path: Path) -> None:
    broker = with_history(path, jobs=2)
    holdings = [Holding(by="job 9", gpus=[1], until_s=3 * DAY_S), Holding(by="job 8", gpus=[2])]
    broker.says("n0", Held(held=holdings))
    broker.journal.close()
    with closing(Journal(path)) as journal:
        whole = recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo-backfill"))
    cut = made(path, broker.now_s + DAY_S)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
    with closing(Journal(path)) as journal:
        state = recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo-backfill"))
        assert isinstance(read_journal(path)[-1].entry, BasePart)
        assert state.holdings.holdings_of("n0") == holdings
        assert state.cluster.digest() == whole.cluster.digest()
        theirs = [state.cluster.slot_of(seq) for _, seq in state.holdings.by_node["n0"]]
        assert all(state.cluster.arrays.job.unshared[theirs]), "no job joins them"
    again = make(Journal(path))
    again.says("n0", Hello(name="n0", gpus=4, held=holdings))
    again.ask(submit(2, token="two"))
    assert again.state.jobs[4].state == "queued", "job 2 and foreign processes have three of four GPUs"
    again.says("n0", Held(held=[]))
    assert again.state.jobs[4].state == "launching"
    again.journal.close()


def test_entries_left_by_a_crash_after_the_base_are_ignored(path: Path) -> None:
    with_history(path).journal.close()
    known = reopened(path)
    cut = compact(path, drop=False)
    assert first_of(path) == 1
    assert read_journal(path)[0].n == cut.n - len(cut.parts) + 1
    assert reopened(path) == known
    assert check(path).damage == []
    clock, said = count(0.0, 10.0), list[str]()
    with closing(Journal(path)) as journal:
        keeper = Compacting(journal, Keeps(), float("inf"), said.append, elapsed=lambda: next(clock))
        keeper._next_piece_s = 29.5
        keeper.step(0.0, is_quiet=False)
        assert first_of(path) == 1, "it waits for a quiet turn"
        for _ in range(3):
            keeper.step(0.0, is_quiet=True)
    assert first_of(path) == cut.n - len(cut.parts) + 1
    assert said == []


def test_base_for_other_entries_is_not_written(path: Path) -> None:
    broker = with_history(path)
    cut = made(path, DAY_1_S)
    assert cut is not None
    broker.journal._db.execute("UPDATE entries SET crc = crc + 1 WHERE n = ?", (cut.n,))
    assert not put(broker.journal, cut)
    assert broker.journal.first == 1
    broker.journal.close()


def test_no_compaction_if_few_entries_are_old(path: Path) -> None:
    with_history(path).journal.close()
    assert made(path, 999.0) is None
    compact(path)
    assert made(path, DAY_1_S) is None, "already compacted"


def test_table_of_ended_jobs_is_rebuilt_without_the_old_jobs(path: Path) -> None:
    with_history(path).journal.close()
    compact(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM ended_jobs WHERE job = 6")
        before = db.execute("SELECT count(*) FROM ended_jobs").fetchone()
    [line] = check(path).derived
    assert "ended job 6: its row is missing" in line
    with closing(Journal(path)) as journal:
        remake_ended(journal)
    assert before == (4,)
    assert check(path).derived == []


def test_missing_row_before_the_base_is_noticed(path: Path) -> None:
    with_history(path).journal.close()
    compact(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM ended_jobs WHERE job = 2")
    [line] = check(path).derived
    assert "ended jobs: 4 had finished before the journal's base, and 3 of them have rows" in line


def test_backup_of_a_compacted_journal_is_restored(path: Path, tmp_path: Path) -> None:
    with_history(path).journal.close()
    compact(path)
    back_up(path, tmp_path / "copy.sqlite")
    found = restore(tmp_path / "copy.sqlite", path.parent)
    assert (found.epoch, found.last_number) == (1_001, 1_000_000)
    assert reopened(path)[-1] == (6, "completed")


def test_history_is_the_same(path: Path) -> None:
    broker = with_history(path, jobs=20)
    broker.ask(submit(2, token="waits"))
    broker.says("n0", Held(held=[Holding(by="job 8", gpus=[3])]))
    broker.says("n1", hello("n1"))
    broker.ask(DrainNode(node="n1"))
    broker.ask(submit(1, token="later"))
    broker.journal.close()
    whole = history_of(path)
    cut = made(path, math.inf, keep_entries=3)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
    kept = history_of(path.parent)
    assert kept.trace.job_id.tolist() == whole.trace.job_id.tolist()
    for column in ("submit_s", "duration_s", "num_gpus", "user", "vc", "status", "predicted_s"):
        assert list(getattr(kept.trace, column)) == list(getattr(whole.trace, column)), column
    assert list(map(str, kept.trace.extra["queue_s"])) == list(map(str, whole.trace.extra["queue_s"]))
    assert (kept.cluster, kept.origin_s, kept.until_s) == (whole.cluster, whole.origin_s, whole.until_s)
    assert [one[1:] for one in kept.changes] == [one[1:] for one in whole.changes]


def test_history_has_the_return_of_a_node_that_was_unreachable_at_the_snapshot(path: Path) -> None:
    broker = with_history(path, jobs=2)
    broker.wait(60.0)
    assert broker.machine.state.nodes["n0"].state == "unreachable"
    number = last_of(path)
    broker.says("n0", hello("n0"))
    broker.journal.close()
    whole = history_of(path).changes
    cut = made(path, math.inf, keep_entries=last_of(path) - number)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
    kept = history_of(path.parent).changes
    assert [one[1:] for one in kept] == [one[1:] for one in whole] == [(0, "drain"), (0, "up")]


def test_simulator_refuses_a_compacted_journal(path: Path) -> None:
    with_history(path).journal.close()
    compact(path)
    with pytest.raises(JournalError, match=r"compacted: entries before \d+ are missing"):
        journal_events(path)


def test_standby_follows_across_a_compaction(path: Path) -> None:
    broker = with_history(path)
    broker.journal.close()
    late, early = (Warm(load_scheduler("fifo-backfill"), "", RUNNING_MEAN) for _ in range(2))
    followers = [JournalFollower(path, warm) for warm in (late, early)]
    followers[1].step()
    last = read_journal(path)[-1].n
    assert (late.last, early.last) == (0, last)
    early.last = 4  # as if it had read only four entries
    with closing(sqlite3.connect(path)) as db:
        early.checksum = db.execute("SELECT crc FROM entries WHERE n = 4").fetchone()[0]
    compact(path)
    for follower in followers:
        follower.step()
        follower.close()
    assert [warm.last for warm in (late, early)] == [last, last]
    assert [sorted(warm.state.job_of_seq) for warm in (late, early)] == [[4], [4]]


def test_copy_of_a_compacted_journal_starts_with_its_base(path: Path, tmp_path: Path) -> None:
    with_history(path).journal.close()
    compact(path, drop=False)
    with closing(Journal(path)) as journal, closing(Journal(tmp_path / "copy.sqlite")) as copy:
        assert journal.checksum_of(4) is None, "a copy that ends there starts again"
        page = journal.page(0, 1 << 20)
        assert page[0][0] == journal.first
        copy.append(page)
        assert (copy.first, copy.last) == (journal.first, journal.last)
        assert list(copy.rows()) == list(journal.rows())
        with pytest.raises(JournalError, match="out of order"):
            copy.append(page)


def test_notices_continue_after_a_compaction(path: Path, tmp_path: Path) -> None:
    broker = with_history(path)
    told: list[Any] = []
    cursor = tmp_path / "cursor"
    file = CursorFile(cursor)
    Notifier(path, file, told.append, threading.Event()).step()
    file.close()
    broker.journal.close()
    compact(path)
    broker = make(Journal(path))
    broker.says("n0", hello("n0", 4, AttemptReport(job=5, attempt=1, rank=0, state="running")))
    file = CursorFile(cursor)
    broker.says("n0", ended(5))
    notifier = Notifier(path, file, told.append, threading.Event())
    while notifier.step():
        pass
    file.close()
    broker.journal.close()
    assert [(notice.job, notice.event, notice.attempt) for notice in told] == [(5, "end", 1)]


def test_verb_compacts(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_history(path, jobs=60).journal.close()
    place = ["--dir", str(path.parent)]
    assert run(["journal", "compact", *place, "--keep-days", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["entries_replaced"] > 240
    assert found["bytes"] < found["bytes_before"]
    assert run(["journal", "check", *place]) == 0
    assert " and a base for " in capsys.readouterr().out
    assert run(["journal", "compact", *place, "--keep-days", "1"]) == 0
    assert "no entries were replaced" in capsys.readouterr().out
    assert run(["journal", "compact", *place, "--keep-days", "0"]) == 2


@pytest.mark.soak
def test_kill_at_any_instant_leaves_the_journal_whole(path: Path) -> None:
    """kill -9, at instants spread over a whole run."""
    with_history(path, jobs=200).journal.close()
    known, words = reopened(path), [*RLSCHED, "journal", "compact", "--keep-days", "1"]
    copy = path.with_name("copy")
    shutil.copytree(path.parent, copy)
    began_s = time.monotonic()
    subprocess.run([*words, "--dir", str(copy)], check=True)
    whole_s = time.monotonic() - began_s
    for instant in range(12):
        process = subprocess.Popen([*words, "--dir", str(path.parent)])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole_s * (0.5 + 0.05 * instant))
        process.kill()
        process.wait()
        report = check(path)
        assert (report.damage, report.derived) == ([], [])
        assert reopened(path) == known
    assert run(["journal", "compact", "--dir", str(path.parent), "--keep-days", "1"]) == 0
    assert isinstance(read_journal(path)[0].entry, BasePart)
    assert reopened(path) == known


@pytest.mark.slow
def test_broker_compacts_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real process, which reads the journal that this process has open."""
    monkeypatch.setattr(compacting, "FIRST_S", 0.0)
    broker, said = with_history(path), list[str]()
    keeper = Compacting(broker.journal, Keeps(days=1.0), float("inf"), said.append)
    known = broker.state.now_s
    while not said:
        keeper.step(known, is_quiet=True)
        if keeper._process is not None:
            keeper._process.wait(60.0)
    assert "a base replaces the entries up to" in said[0]
    assert broker.ask(submit(1)) is not None, "it still serves"
    assert list(path.parent.glob("*.base")) == []
    keeper.close()
    broker.journal.close()
    assert isinstance(read_journal(path)[0].entry, BasePart)


@pytest.mark.slow
def test_latest_entries_are_kept_by_default(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "GROWN_EVERY_S", 0.0)
    broker, said = with_history(path, jobs=60), list[str]()
    last = broker.journal.last
    assert last > GROWN * 100
    keeper = Compacting(broker.journal, Keeps(entries=100), float("inf"), said.append)
    while not said:
        keeper.step(broker.now_s, is_quiet=False)
        if keeper._process is not None:
            keeper._process.wait(60.0)
    assert said == [f"journal: a base replaces the entries up to {last - 100:,} from now on"]
    assert not keeper._is_grown()
    keeper.close()
    broker.journal.close()
    assert 100 < len(read_journal(path)) < 110
    assert check(path).damage == check(path).derived == []


def test_journal_that_keeps_all_entries_is_left_unchanged(path: Path) -> None:
    broker = with_history(path)
    for keeps in (Keeps(days=float("inf")), Keeps(entries=1_000)):
        keeper = Compacting(broker.journal, keeps, 1.0, print, elapsed=lambda: 1e9)
        assert not keeper._is_grown()
    broker.journal.close()


def test_busy_broker_drops_replaced_entries_too(path: Path) -> None:
    with_history(path).journal.close()
    compact(path, drop=False)
    now_s = [0.0]
    with closing(Journal(path)) as journal:
        keeper = Compacting(journal, Keeps(), float("inf"), print, elapsed=lambda: now_s[0])
        for _ in range(10):
            keeper.step(0.0, is_quiet=False)
            now_s[0] += compacting.PIECE_BUSY_S
        assert first_of(path) == journal.first


def test_rows_of_jobs_that_ended_long_ago_are_dropped(path: Path) -> None:
    broker = with_history(path)
    clock = count(0.0, compacting.FIRST_S + 1.0)
    keeper = Compacting(
        broker.journal, Keeps(ended_days=1.0), float("inf"), print, elapsed=lambda: next(clock)
    )
    for _ in range(5):
        keeper.step(broker.now_s, is_quiet=True)
    broker.journal.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT job FROM ended_jobs").fetchall() == [(6,)]
    assert check(path).derived == check(path).damage == []
    compact(path)
    assert check(path).derived == check(path).damage == []
    assert reopened(path) == [(5, "running"), (6, "completed")]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM ended_jobs WHERE job = 6")
    assert len(check(path).derived) == 1, "this row is missing"
    with closing(Journal(path)) as journal:
        remake_ended(journal)
    assert check(path).derived == []


def test_kill_at_any_statement_loses_nothing(path: Path, tmp_path: Path) -> None:
    """The files as kill -9 leaves them before each statement of a compaction, and at the end."""
    with_history(path).journal.close()
    known, cut = reopened(path), made(path, DAY_1_S)
    assert cut is not None
    statements: list[str] = []

    def killed(statement: str) -> None:
        found = tmp_path / f"killed-{len(statements)}"
        found.mkdir()
        for file in (path, path.with_name(path.name + "-wal")):
            if file.exists():
                shutil.copy(file, found / file.name)
        statements.append(" ".join(statement.split())[:60])

    with closing(Journal(path)) as journal:
        journal._db.set_trace_callback(killed)
        assert put(journal, cut)
        while journal.drop(3):
            pass
        journal.drop_ended(0.0)
        journal.compact()
        journal._db.set_trace_callback(None)
        killed("the end")
    firsts = set[int]()
    for number, statement in enumerate(statements):
        left = tmp_path / f"killed-{number}" / path.name
        report = check(left)
        assert (report.damage, report.derived) == ([], []), statement
        assert reopened(left) == known, statement
        firsts.add(read_journal(left)[0].n)
    assert firsts == {1, cut.n - len(cut.parts) + 1}
    for word in ("INSERT OR REPLACE INTO entries", "DELETE FROM snapshots", "DELETE FROM entries", "VACUUM"):
        assert any(one.startswith(word) for one in statements), word
    assert sum(one == "COMMIT" for one in statements) > 3


def test_failed_compaction_process_is_logged_and_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "FIRST_S", 0.0)
    broker, said = with_history(path), list[str]()
    for script in ("raise SystemExit('no room')", "print('nonsense')"):
        line = [sys.executable, "-c", script]
        keeper = Compacting(
            broker.journal, Keeps(days=1.0), 1.0, said.append, make=lambda *_, line=line: line
        )
        keeper.step(0.0, is_quiet=True)
        assert keeper._process is not None
        keeper._process.wait(60.0)
        keeper.step(0.0, is_quiet=True)
        keeper.close()
    assert [line.startswith("journal: not compacted: ") for line in said] == [True, True]
    assert broker.journal.first == 1
    broker.journal.close()


# ---- the document -----------------------------------------------------------------------------------------


def test_every_field_of_a_job_is_in_a_base_or_derived() -> None:
    """Put a new field of `JOB` on one of these lists."""
    assert sorted((*JOB_FIELDS, *BURST_FIELDS, *JOB_DERIVED)) == sorted(JOB.names or ())


def test_later_version_is_refused_by_name(path: Path) -> None:
    with_history(path).journal.close()
    parts = [msgspec.structs.replace(part, version=9) for part in compact(path).parts]
    with pytest.raises(JournalError, match="the journal's base has version 9, this rlsched reads versions 1"):
        read_base(parts)
    with pytest.raises(JournalError, match="the journal's base is incomplete"):
        read_base([msgspec.structs.replace(parts[0], parts=2)])
    with pytest.raises(JournalError, match="the journal's base is damaged"):
        read_base([msgspec.structs.replace(parts[0], version=1, data=b"x")])


def test_unknown_field_of_a_later_version_is_skipped(path: Path) -> None:
    with_history(path).journal.close()
    base = base_at_the_head(read_journal(path)) or read_base(compact(path).parts)
    plain = msgspec.to_builtins(base, builtin_types=(bytes,))
    plain["of_tomorrow"] = {"a": [1, 2]}
    del plain["learned"]["losses"]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=Base)
    assert (again.jobs, again.nodes, again.charged) == (base.jobs, base.nodes, base.charged)
    assert read_base(write_base(base)).jobs == base.jobs


def test_journal_with_a_base_of_version_1_can_be_read(path: Path) -> None:
    """The sample was written by the first version with bases. Never write it again."""
    path.parent.mkdir()
    shutil.copy(SAMPLES / "version-4-with-base.sqlite", path)
    assert check(path).damage == []
    broker = make(Journal(path))
    states = {job.number: job.state for job in broker.state.job_of_seq.values()}
    assert states == {5: "running"}
    assert (broker.state.num_finished, broker.state.predictions.mean.sums["*", 0][0]) == (5, 5)
    broker.journal.close()
