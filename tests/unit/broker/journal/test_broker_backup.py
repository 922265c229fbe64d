"""Backups of the journal: made while a broker runs, and restored so that no number is used twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.broker.base.entries import JobSubmitted, Restored
from rlsched.broker.events import ClientAsked, Tick
from rlsched.broker.journal.backup import Restoration, back_up, restore
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import JOURNAL_FILE, journal_events
from rlsched.cli.main import run
from rlsched.errors import InputError, JournalError, JournalHeldError
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    DownNode,
    Kill,
    Launch,
    Ok,
    RemoveNode,
    ResumeNode,
    Submitted,
    Welcome,
)
from tests.support.broker.hand import ended, hello, launched, make, of_kind, submit
from tests.support.broker.hand_broker import HandBroker

MakeBroker = Callable[[], HandBroker]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "broker"


def opened(directory: Path) -> HandBroker:
    return make(Journal(directory / JOURNAL_FILE))


def live(directory: Path) -> HandBroker:
    """A broker with one job that runs on n0, and two that wait."""
    broker = opened(directory)
    broker.says("n0", hello("n0"))
    assert broker.ask(submit(4)) == Submitted(job=1)
    broker.says("n0", launched(1))
    assert broker.ask(submit(4)) == Submitted(job=2)
    assert broker.ask(submit(4)) == Submitted(job=3)
    return broker


def restored(directory: Path, then: Callable[[HandBroker], object]) -> tuple[HandBroker, Restoration]:
    """Back up `live`, let it go on with `then`, and start another broker on the restored backup."""
    broker = live(directory)
    back_up(directory / JOURNAL_FILE, directory.parent / "backup.sqlite")
    then(broker)
    broker.journal.close()
    found = restore(directory.parent / "backup.sqlite", directory)
    return opened(directory), found


def report(job: int, attempt: int = 1, state: str = "running") -> AttemptReport:
    code = 0 if state == "ended" else None
    return AttemptReport(job=job, attempt=attempt, rank=0, state=state, exit_code=code)


def register(broker: HandBroker, name: str, *attempts: AttemptReport, epoch: int = 7) -> Welcome:
    out = broker.says(name, hello(name, 4, *attempts, cluster="c1", epoch=epoch))
    [welcome] = of_kind(out, Welcome)
    return welcome


# ---- the copy ---------------------------------------------------------------------------------------------


def test_a_backup_of_a_live_journal_is_one_whole_private_file(directory: Path, tmp_path: Path) -> None:
    broker = live(directory)
    target = tmp_path / "backups" / "one.sqlite"
    entries = back_up(directory / JOURNAL_FILE, target)
    broker.ask(submit())
    assert read_journal(target) == read_journal(directory / JOURNAL_FILE)[:entries]
    assert [file.name for file in target.parent.iterdir()] == ["one.sqlite"]
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="exists already"):
        back_up(directory / JOURNAL_FILE, target)
    broker.journal.close()


def test_a_damaged_journal_is_not_backed_up(directory: Path, tmp_path: Path) -> None:
    live(directory).journal.close()
    with sqlite3.connect(directory / JOURNAL_FILE) as db:
        db.execute("UPDATE entries SET now_s = now_s + 1 WHERE n = 3")
    db.close()
    with pytest.raises(JournalError, match="entry 3: damaged"):
        back_up(directory / JOURNAL_FILE, tmp_path / "backup.sqlite")
    assert list(tmp_path.glob("backup*")) == []


# ---- numbers ----------------------------------------------------------------------------------------------


def test_no_number_is_used_twice_and_nodes_of_later_epochs_are_accepted(directory: Path) -> None:
    def more(broker: HandBroker) -> None:
        for number in range(4, 10):
            assert broker.ask(submit()) == Submitted(job=number)

    broker, found = restored(directory, more)
    assert (found.epoch, found.last_number) == (1_001, 1_000_000)
    assert broker.ask(submit()) == Submitted(job=1_000_001)
    assert broker.state.epoch == 1_002
    assert register(broker, "n0", report(1), epoch=900).epoch == 1_002
    broker.journal.close()
    again = opened(directory)
    assert again.state.last_number == 1_000_001
    again.journal.close()


def test_numbers_continue_above_those_of_the_replaced_journal(directory: Path, tmp_path: Path) -> None:
    """A damaged journal counts as far as it can be read."""
    broker = live(directory)
    back_up(directory / JOURNAL_FILE, tmp_path / "backup.sqlite")
    broker.state.last_number = 4_000_000
    assert broker.ask(submit()) == Submitted(job=4_000_001)
    broker.journal.close()
    with sqlite3.connect(directory / JOURNAL_FILE) as db:
        db.execute("UPDATE entries SET payload = x'00' WHERE n = 2")
    db.close()
    found = restore(tmp_path / "backup.sqlite", directory)
    assert found.last_number == 5_000_000
    assert check(directory / JOURNAL_FILE).damage == []
    assert [line for line in check(found.kept).damage if "entry 2: damaged" in line]


def test_numbers_that_only_nodes_know_are_not_reused(directory: Path) -> None:
    broker, found = restored(directory, lambda _: None)
    register(broker, "n0", report(1), report(found.last_number + 50))
    assert broker.ask(submit()) == Submitted(job=found.last_number + 51)
    register(broker, "n0", report(1), report(1 << 60))
    assert broker.ask(submit()) == Submitted(job=found.last_number + 52)
    broker.journal.close()


# ---- running jobs -----------------------------------------------------------------------------------------


def test_jobs_that_only_nodes_know_keep_running(directory: Path) -> None:
    broker, _ = restored(directory, lambda _: None)
    register(broker, "n0", report(1))
    welcome = register(broker, "n1", report(8), report(9, state="ended"))
    assert welcome.forget == [(9, 1)]
    assert broker.says("n1", launched(8)) == []
    node = broker.state.nodes["n1"]
    assert (node.state, "jobs 8 continue" in node.reason) == ("drained", True)
    broker.says("n1", ended(8), after_s=100.0)
    assert broker.state.nodes["n1"].state == "up"
    broker.journal.close()


def test_admin_may_cancel_a_job_that_only_its_node_knows(directory: Path) -> None:
    broker, _ = restored(directory, lambda _: None)
    register(broker, "n1", report(8))
    broker.batch([ClientAsked(b"u", 1, Cancel(job=8), Peer("user", "ada", "ada"))])
    assert of_kind([order for _, order in broker.sent.orders], Kill) == []
    broker.batch([ClientAsked(b"a", 1, Cancel(job=8), Peer("admin", "root"))])
    assert broker.sent.replies[-1][2] == Ok()
    assert of_kind([order for _, order in broker.sent.orders], Kill) == [
        Kill(epoch=1_002, job=8, attempt=1, rank=0)
    ]
    broker.journal.close()


def with_two_nodes(directory: Path) -> HandBroker:
    """A restored backup: n0 runs job 1, job 2 waits, n1 has no job."""
    broker = opened(directory)
    broker.says("n0", hello("n0"))
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.says("n1", hello("n1", 2))
    broker.ask(submit(4))
    back_up(directory / JOURNAL_FILE, directory.parent / "backup.sqlite")
    broker.journal.close()
    restore(directory.parent / "backup.sqlite", directory)
    return opened(directory)


def launches(broker: HandBroker) -> list[tuple[int, int, list[str]]]:
    started = of_kind([order for _, order in broker.sent.orders], Launch)
    return [(launch.job, launch.attempt, launch.nodes) for launch in started]


def test_nothing_starts_before_every_node_of_the_backup_has_registered(directory: Path) -> None:
    """Job 2 waits in the backup but runs on n1, which registers last."""
    broker = with_two_nodes(directory)
    register(broker, "n0")  # job 1 ended there and its end was acknowledged
    broker.wait(100_000.0, "n0")
    assert (broker.state.jobs[1].state, broker.state.nodes["n0"].state) == ("queued", "drained")
    assert launches(broker) == []
    broker.says("n1", hello("n1", 2, report(2), cluster="c1", epoch=7))
    assert (broker.state.jobs[2].state, "this attempt continues" in broker.state.jobs[2].reason) == (
        "cancelled",
        True,
    )
    assert launches(broker) == [(1, 1_001, ["n0"])]
    broker.journal.close()


@pytest.mark.parametrize("order", [DownNode, RemoveNode])
def test_start_does_not_wait_for_a_node_that_is_down(directory: Path, order: type) -> None:
    broker = with_two_nodes(directory)
    register(broker, "n0", report(1))
    broker.wait(100.0, "n0")
    assert broker.state.nodes["n0"].state == "drained"
    broker.journal.close()
    broker = opened(directory)  # the list of awaited nodes survives a restart
    register(broker, "n0", report(1))
    assert broker.state.nodes["n0"].state == "drained"
    broker.wait(100.0, "n0")
    assert broker.ask(order(node="n1")) == Ok()
    broker.batch([Tick()])
    assert broker.state.nodes["n0"].state == "up"
    broker.journal.close()


def test_operator_can_end_the_wait(directory: Path) -> None:
    broker = with_two_nodes(directory)
    register(broker, "n0", report(1))
    broker.says("n0", ended(1))
    assert of_kind([order for _, order in broker.sent.orders], Launch) == []
    assert broker.ask(ResumeNode(node="n0")) == Ok()
    assert [one.job for one in of_kind([order for _, order in broker.sent.orders], Launch)] == [2]
    register(broker, "n0")  # its connection was interrupted
    assert broker.state.nodes["n0"].state == "up"
    broker.journal.close()


def test_pending_launch_is_not_repeated_before_all_nodes_report(directory: Path) -> None:
    broker = opened(directory)
    broker.says("n1", hello("n1", 2))
    broker.says("n0", hello("n0"))
    broker.ask(submit(4))
    back_up(directory / JOURNAL_FILE, directory.parent / "backup.sqlite")
    broker.journal.close()
    restore(directory.parent / "backup.sqlite", directory)
    broker = opened(directory)
    register(broker, "n0")
    broker.wait(100.0, "n0")
    assert launches(broker) == []
    broker.says("n1", hello("n1", 2, cluster="c1", epoch=7))
    assert launches(broker) == [(1, 1, ["n0"])]
    assert register(broker, "n0", report(1)).forget == []
    assert broker.state.jobs[1].state == "running"
    broker.journal.close()


# ---- refusals, verbs --------------------------------------------------------------------------------------


def test_journal_in_use_is_not_replaced(directory: Path, tmp_path: Path) -> None:
    broker = live(directory)
    back_up(directory / JOURNAL_FILE, tmp_path / "backup.sqlite")
    with pytest.raises(JournalHeldError, match="stop it first"):
        restore(tmp_path / "backup.sqlite", directory)
    broker.journal.close()


def test_damaged_backup_changes_nothing(directory: Path, tmp_path: Path) -> None:
    broker = live(directory)
    back_up(directory / JOURNAL_FILE, tmp_path / "backup.sqlite")
    broker.journal.close()
    with sqlite3.connect(tmp_path / "backup.sqlite") as db:
        db.execute("DELETE FROM entries WHERE n = 3")
    db.close()
    before = read_journal(directory / JOURNAL_FILE)
    with pytest.raises(JournalError, match="entry 3 is missing"):
        restore(tmp_path / "backup.sqlite", directory)
    assert read_journal(directory / JOURNAL_FILE) == before
    assert sorted(file.name for file in directory.iterdir()) == [JOURNAL_FILE, f"{JOURNAL_FILE}.lock"]


def test_write_ahead_log_without_its_journal_is_refused(directory: Path) -> None:
    broker = live(directory)
    (directory / JOURNAL_FILE).rename(directory / "moved")
    broker.journal.close()
    (directory / f"{JOURNAL_FILE}-wal").write_bytes(b"left over")
    with pytest.raises(JournalError, match="this write-ahead log has no journal"):
        Journal(directory / JOURNAL_FILE)


def test_verbs_back_up_and_restore(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = live(directory)
    place, copy = ["--dir", str(directory)], str(tmp_path / "copy.sqlite")
    assert run(["journal", "check", *place, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["damage"], report["jobs"], report["next_job"]) == ([], {"queued": 2, "running": 1}, 4)
    assert run(["journal", "backup", copy, *place]) == 0
    assert run(["journal", "backup", copy, *place]) == 2
    assert run(["journal", "restore", copy, *place]) == 2
    assert "another broker holds" in capsys.readouterr().err
    broker.journal.close()
    assert run(["journal", "export", copy]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["n"] for line in lines] == [row.n for row in read_journal(copy)]
    assert {line["entry"]["type"] for line in lines} >= {"broker_started", "job_submitted", "decided"}
    assert run(["journal", "restore", copy, *place]) == 0
    out = capsys.readouterr().out
    assert "the next job's number 1000001" in out
    assert "until all nodes of the backup have registered" in out
    assert run(["journal", "compact", *place]) == 0
    assert run(["journal", "check", *place]) == 0
    assert "whole, version 9" in capsys.readouterr().out
    assert run(["journal", "check", place[1]]) == 0  # a folder, instead of the file in it
    assert "whole, version 9" in capsys.readouterr().out
    kinds = [type(row.entry) for row in read_journal(directory / JOURNAL_FILE)]
    assert (kinds.count(JobSubmitted), kinds.count(Restored)) == (3, 1)
    assert len(journal_events(directory).seq_of) == 3


def test_damage_is_listed_with_exit_code_1(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live(directory).journal.close()
    with sqlite3.connect(directory / JOURNAL_FILE) as db:
        db.execute("UPDATE entries SET now_s = now_s + 1 WHERE n IN (3, 5)")
    db.close()
    assert run(["journal", "check", "--dir", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "entry 3: damaged" in out
    assert "entry 5: damaged" in out
    assert run(["journal", "check", "--dir", str(directory / "none")]) == 1
    assert "there is no journal here" in capsys.readouterr().err


def test_default_broker_is_that_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    assert run(["journal", "check"]) == 1
    assert f"{tmp_path / 'broker'}: there is no journal here" in capsys.readouterr().err
    Journal(tmp_path / "up" / "broker" / "journal.sqlite").close()
    assert run(["journal", "check"]) == 0
    assert str(tmp_path / "up") in capsys.readouterr().out
