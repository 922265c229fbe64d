"""The table of ended jobs: its rows, the facts that they are committed with, and its repair."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlsched.broker.base.entries import JobCancelled
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.marks import SCHEMA_VERSION
from rlsched.broker.journal.recovery import recover_state
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.state.finished_job import EndedJob, ended_job, job_of
from rlsched.broker.state.finished_table import COLUMNS
from rlsched.broker.state.predictions import Predictions
from rlsched.cli.main import run
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError
from rlsched.wire.messages import Cancel, Refused, Submitted
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import FailingJournal, HandBroker

SAMPLES = Path(__file__).parents[3] / "samples" / "journal"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker" / JOURNAL_FILE


def rows(path: Path, columns: str = "*") -> list[dict[str, Any]]:
    """The table as any reader of SQLite sees it, by job number."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"SELECT {columns} FROM ended_jobs ORDER BY job")]


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def four_ends(broker: HandBroker) -> None:
    """1 completes after a minute, 2 fails after two attempts, 3 is cancelled in the queue, 4 is rejected."""
    broker.says("n0", hello("n0"))
    assert broker.ask(submit(4, name="one", user="ada", vc="")) == Submitted(job=1)
    broker.says("n0", launched(1))
    assert broker.ask(submit(2, name="two", user="bob")) == Submitted(job=2)
    assert broker.ask(submit(4, name="three", user="bob")) == Submitted(job=3)
    broker.says("n0", ended(1), after_s=60.0)
    assert broker.ask(Cancel(job=3)) is not None
    broker.says("n0", launched(2))
    broker.says("n0", ended(2, exit_code=143, reason="node_stopped"), after_s=10.0)
    broker.says("n0", launched(2, attempt=2))
    broker.says("n0", ended(2, attempt=2, exit_code=3), after_s=20.0)
    assert isinstance(broker.ask(submit(400, name="four")), Refused)


def test_every_end_is_a_row(path: Path) -> None:
    broker = make(Journal(path))
    four_ends(broker)
    one, two, three, four = rows(path)
    near = pytest.approx
    assert (one["job"], one["name"], one["user"], one["state"], one["exit_code"]) == (
        1,
        "one",
        "ada",
        "completed",
        0,
    )
    assert (one["gpu_s"], one["num_gpus"], one["nodes"]) == (near(240.0, abs=0.1), 4, "n0[0,1,2,3]")
    assert one["gpu_types"] == broker.state.nodes["n0"].spec.gpu_type
    assert (one["wait_s"], one["start_s"], one["end_s"]) == (
        near(0.0, abs=0.01),
        one["submit_s"],
        near(one["submit_s"] + 60.0, abs=0.1),
    )
    assert (two["state"], two["exit_code"], two["attempts"], two["preemptions"]) == ("failed", 3, 2, 0)
    assert (two["gpu_s"], two["wait_s"]) == (near(60.0, abs=0.1), near(60.0, abs=0.1))
    assert (three["state"], three["reason"]) == ("cancelled", "cancelled by its user")
    assert (three["start_s"], three["wait_s"], three["gpu_s"], three["attempts"]) == (None, None, 0.0, 0)
    assert (four["state"], four["nodes"], four["exit_code"]) == ("rejected", "", None)
    assert "400 GPUs can never be given" in four["reason"]
    assert {row["energy_j"] for row in rows(path)} == {None}, "no node measured it"
    for row in rows(path):
        found = job_of(EndedJob(**{name: row[name] for name in EndedJob._fields}))
        assert msgspec.json.encode(found) == msgspec.json.encode(broker.state.jobs[row["job"]])
    broker.journal.close()


def test_row_is_committed_together_with_the_facts_of_its_end(path: Path) -> None:
    journal = FailingJournal(path)
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    journal.fail_from = journal.commits
    with pytest.raises(JournalError, match="full"):
        broker.says("n0", ended(1))
    assert rows(path) == []
    journal.close()
    again = make(Journal(path))
    assert again.state.jobs[1].state == "running"
    again.says("n0", ended(1))
    assert [row["state"] for row in rows(path)] == ["completed"]
    again.journal.close()


@pytest.mark.parametrize(
    ("version", "states"),
    [
        (1, {1: "failed", 5: "failed"}),
        (2, {1: "completed", 2: "failed", 3: "rejected", 6: "cancelled"}),
    ],
)
def test_first_start_on_an_older_journal_builds_the_table(
    path: Path, version: int, states: dict[int, str]
) -> None:
    path.parent.mkdir()
    shutil.copy(SAMPLES / f"version-{version}.sqlite", path)
    make(Journal(path)).journal.close()
    assert {row["job"]: row["state"] for row in rows(path)} == states
    report = check(path)
    assert (report.version, report.damage, report.derived) == (SCHEMA_VERSION, [], [])


def test_broker_adds_missing_rows_at_its_start(path: Path) -> None:
    """`rlsched journal restore` writes facts without rows."""
    broker = make(Journal(path), nodes=1)
    for _ in range(3):
        broker.ask(submit(4))
    broker.ask(Cancel(job=3))
    broker.journal.commit([JobCancelled(job=2, reason="restored")], broker.now_s + 1.0)
    assert broker.journal.ended_at == broker.journal.last - 1
    broker.journal.commit([], broker.now_s + 2.0, [])
    assert [row["job"] for row in rows(path)] == [3]
    broker.journal.close()
    again = make(Journal(path))
    assert [(row["job"], row["reason"]) for row in rows(path)] == [
        (2, "restored"),
        (3, "cancelled by its user"),
    ]
    assert again.journal.ended_at == again.journal.last
    again.journal.close()


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (
            "UPDATE ended_jobs SET gpu_s = 1 WHERE job = 2",
            "ended job 2: its row differs from the entries: gpu_s",
        ),
        (
            "UPDATE ended_jobs SET crc = 1 WHERE job = 2",
            "ended job 2: its row differs from the entries: crc",
        ),
        ("DELETE FROM ended_jobs WHERE job = 3", "ended job 3: its row is missing"),
        ("UPDATE ended_jobs SET job = 7 WHERE job = 4", "ended job 4: its row is missing"),
        (
            "INSERT INTO ended_jobs SELECT 9, token, name, user, account, vc, submit_s, start_s, end_s, "
            "state, exit_code, reason, num_gpus, gpu_types, nodes, gpu_s, energy_j, attempts, preemptions, "
            "wait_s, rest, crc FROM ended_jobs WHERE job = 1",
            "ended jobs: 5 rows, the entries end 4 jobs",
        ),
    ],
)
def test_table_that_differs_from_the_facts_is_damage_and_can_be_rebuilt(
    path: Path, harm: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make(Journal(path))
    four_ends(broker)
    broker.journal.close()
    whole = rows(path)
    change(path, harm)
    assert run(["journal", "check", "--dir", str(path.parent)]) == 1
    assert line in capsys.readouterr().out
    assert run(["journal", "compact", "--remake-ended", "--dir", str(path.parent)]) == 0
    assert (check(path).damage, check(path).derived) == ([], [])
    assert rows(path) == whole


def test_long_table_is_rebuilt_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make(Journal(path))
    four_ends(broker)
    broker.journal.close()
    whole = rows(path)
    monkeypatch.setattr("rlsched.broker.journal.recovery._CHUNK", 2)
    journal = Journal(path)
    journal.forget_ended()
    assert rows(path) == []
    state = recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler("fifo"))
    assert rows(path) == whole
    assert (journal.ended_at, state.num_finished) == (journal.last, 4)
    journal.close()


def test_failed_gang_is_charged_for_all_its_gpus_until_its_last_rank_ends(
    path: Path,
) -> None:
    broker = make(Journal(path), nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1))
    broker.says("n1", launched(1, rank=1))
    broker.says("n0", ended(1, exit_code=1), after_s=10.0)
    broker.says("n1", ended(1, rank=1, exit_code=143, reason="killed"), after_s=5.0)
    [row] = rows(path)
    assert row["gpu_s"] == pytest.approx(8 * 15.0, abs=0.1)
    assert row["nodes"] == "n0[0,1,2,3] n1[0,1,2,3]"
    broker.journal.close()


def test_later_changes_of_the_node_do_not_change_the_row(path: Path) -> None:
    broker = make(Journal(path), nodes=1)
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    before = rows(path)
    job = broker.state.jobs[1]
    assert ended_job(job, broker.state.nodes).gpu_types == before[0]["gpu_types"]
    broker.says("n0", hello("n0", 2))
    broker.journal.close()
    assert (check(path).damage, check(path).derived) == ([], [])


def test_earlier_versions_read_a_row_and_rows_of_theirs_are_no_damage(path: Path) -> None:
    """They require two fields of the submission, and wrote its fields in another order."""
    with closing(Journal(path)) as journal:
        four_ends(make(journal))
    assert check(path).derived == []
    with closing(sqlite3.connect(path)) as db, db:
        raw = db.execute(f"SELECT {COLUMNS} FROM ended_jobs WHERE job = 1").fetchone()
        row = EndedJob(*raw)
        rest = msgspec.msgpack.decode(row.rest)
        assert {"num_cpus", "time_limit_s"} <= set(rest["spec"])
        rest["spec"] = dict(reversed(rest["spec"].items()))
        other = row._replace(rest=msgspec.msgpack.encode(rest))
        assert other != row
        db.execute("UPDATE ended_jobs SET rest = ?, crc = ? WHERE job = 1", (other.rest, other.checksum()))
    assert check(path).derived == []
    rest["spec"]["num_cpus"] = 7
    other = row._replace(rest=msgspec.msgpack.encode(rest))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE ended_jobs SET rest = ?, crc = ? WHERE job = 1", (other.rest, other.checksum()))
    (damage,) = check(path).derived
    assert "ended job 1: its row differs from the entries: rest" in damage
