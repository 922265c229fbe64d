"""A broker refuses a journal that lacks entries committed in its directory."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.compaction.compaction import Cut, made, put
from rlsched.broker.journal.backup import back_up, begin_anew, restore
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import ADDRESS_FILE, MARK_FILE, JournalMark, Mark
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.main import run
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.segments import SUFFIX
from rlsched.errors import InputError, JournalHeldError, JournalLostError
from tests.support.broker.hand import ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker

Damage = Callable[[Path], None]


def settings(home: Path, *, new_cluster: bool = False) -> BrokerSettings:
    return BrokerSettings(
        address="tcp://127.0.0.1:0",
        directory=home / "broker",
        keys=home,
        policy="fifo",
        forecaster="",
        new_cluster=new_cluster,
    )


def serve(home: Path, *, new_cluster: bool = False) -> tuple[str, int]:
    """Start and stop a broker: (cluster, epoch)."""
    with closing(Broker(settings(home, new_cluster=new_cluster))) as broker:
        return broker.start_fact.cluster, broker.start_fact.epoch


def mark(home: Path) -> Mark:
    found = JournalMark(home / "broker" / JOURNAL_FILE).read()
    assert found is not None
    return found


def emptied(directory: Path) -> None:
    (directory / JOURNAL_FILE).write_bytes(b"")


def deleted(directory: Path) -> None:
    (directory / JOURNAL_FILE).unlink()


def fresh(directory: Path) -> None:
    """A journal without entries, left by a failed first start."""
    deleted(directory)
    Journal(directory / JOURNAL_FILE).close()


def older(directory: Path) -> None:
    """A copy from before the last start, put back by hand."""
    shutil.copy(directory.parent / "backup.sqlite", directory / JOURNAL_FILE)


def of_another_cluster(directory: Path) -> None:
    other = directory.parent / "other"
    serve(other)
    serve(other)
    shutil.copy(other / "broker" / JOURNAL_FILE, directory / JOURNAL_FILE)


def of_another_cluster_compacted(directory: Path) -> None:
    """Its first entry has a higher number than the last entry committed here."""
    path = directory / JOURNAL_FILE
    deleted(directory)
    broker = HandBroker(load_scheduler("fifo"), Journal(path))
    broker.says("n0", hello("n0"))
    for job in range(1, 6):
        broker.ask(submit(1))
        broker.says("n0", launched(job))
        broker.says("n0", ended(job))
    broker.journal.close()
    compacted(path)


def compacted(path: Path) -> Cut:
    """A base stands for all entries."""
    cut = made(path, 1e12)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
        while journal.drop():
            pass
    return cut


DAMAGE = {
    "emptied": (emptied, "is empty"),
    "deleted": (deleted, "is missing"),
    "without entries": (fresh, "holds no entries"),
    "older": (older, r"ends at entry 1, but a broker has committed entry 2 here"),
    "another cluster's": (of_another_cluster, "differs from the entry that a broker"),
    "another cluster's, compacted": (of_another_cluster_compacted, "differs from the entry that a broker"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A broker has run twice; a backup was made between the runs."""
    serve(tmp_path)
    back_up(tmp_path / "broker" / JOURNAL_FILE, tmp_path / "backup.sqlite")
    assert serve(tmp_path)[1] == 2
    return tmp_path


@pytest.mark.parametrize(("damage", "line"), DAMAGE.values(), ids=DAMAGE)
def test_broker_refuses_in_one_line_with_the_remedy(home: Path, damage: Damage, line: str) -> None:
    before = mark(home)
    damage(home / "broker")
    for _ in range(2):  # a refused start changes nothing
        with pytest.raises(JournalLostError, match=line) as raised:
            serve(home)
        assert "\n" not in str(raised.value)
        assert "rlsched journal restore" in str(raised.value)
        assert raised.value.exit_code == 2
    assert mark(home) == before


@pytest.mark.parametrize(("damage", "line"), DAMAGE.values(), ids=DAMAGE)
def test_restored_backup_is_accepted(home: Path, damage: Damage, line: str) -> None:
    assert line
    cluster = mark(home).cluster
    damage(home / "broker")
    found = restore(home / "backup.sqlite", home / "broker")
    assert found.epoch >= 1_002, "above the epoch of the lost journal"
    assert serve(home) == (cluster, found.epoch + 1)
    assert mark(home).cluster == cluster
    assert serve(home) == (cluster, found.epoch + 2)


@pytest.mark.parametrize(("damage", "line"), DAMAGE.values(), ids=DAMAGE)
def test_operator_can_start_a_new_cluster(home: Path, damage: Damage, line: str) -> None:
    assert line
    before = mark(home).cluster
    damage(home / "broker")
    cluster, epoch = serve(home, new_cluster=True)
    assert (cluster != before, epoch) == (True, 1)
    assert mark(home).cluster == cluster
    assert serve(home) == (cluster, 2)


def test_intact_journal_is_not_discarded(home: Path) -> None:
    with pytest.raises(InputError, match="is undamaged, with 2 entries; start without --new-cluster"):
        serve(home, new_cluster=True)
    assert serve(home)[1] == 3
    with closing(Broker(settings(home))), pytest.raises(JournalHeldError):
        begin_anew(home / "broker" / JOURNAL_FILE)


def test_files_replaced_by_a_new_cluster_are_kept(home: Path) -> None:
    older(home / "broker")
    kept = begin_anew(home / "broker" / JOURNAL_FILE)
    assert kept.endswith("journal.sqlite.replaced-1")
    assert len(read_journal(kept)) == 1
    assert not (home / "broker" / MARK_FILE).exists()


def test_removed_write_ahead_log_is_noticed(home: Path, tmp_path: Path) -> None:
    """As after kill -9: entries that are only in the write-ahead log are lost with it."""
    with closing(Broker(settings(home))):
        shutil.copytree(home / "broker", tmp_path / "killed" / "broker")
    (tmp_path / "killed" / "broker" / (JOURNAL_FILE + "-wal")).unlink()
    with pytest.raises(JournalLostError, match="its write-ahead log was removed"):
        serve(tmp_path / "killed")


def test_write_ahead_log_without_its_journal_is_noticed(home: Path, tmp_path: Path) -> None:
    with closing(Broker(settings(home))):
        shutil.copytree(home / "broker", tmp_path / "killed" / "broker")
    directory = tmp_path / "killed" / "broker"
    (directory / JOURNAL_FILE).unlink()
    (directory / MARK_FILE).unlink()
    (directory / ADDRESS_FILE).unlink()
    with pytest.raises(
        JournalLostError, match=r"is missing, but journal\.sqlite-wal next to it holds commits"
    ):
        serve(tmp_path / "killed")
    assert serve(tmp_path / "killed", new_cluster=True)[1] == 1


# ---- directories of earlier versions ----------------------------------------------------------------------


def test_directory_without_a_mark_gets_one(home: Path) -> None:
    cluster = mark(home).cluster
    (home / "broker" / MARK_FILE).unlink()
    assert serve(home) == (cluster, 3)
    assert mark(home).epoch == 3


@pytest.mark.parametrize("damage", [emptied, deleted, fresh])
@pytest.mark.parametrize("shows", [ADDRESS_FILE, "decisions"])
def test_other_files_show_a_lost_journal_without_a_mark(home: Path, damage: Damage, shows: str) -> None:
    directory = home / "broker"
    damage(directory)
    (directory / MARK_FILE).unlink()
    if shows == "decisions":
        (directory / ADDRESS_FILE).unlink()
        (directory / "decisions" / f"decisions-000001{SUFFIX}").touch()
    with pytest.raises(JournalLostError, match=f"{shows} next to it"):
        serve(home)


def test_unreadable_mark_shows_that_a_journal_existed(home: Path) -> None:
    (home / "broker" / MARK_FILE).write_text("{")
    cluster, epoch = serve(home)
    assert (mark(home).cluster, mark(home).epoch) == (cluster, epoch)
    (home / "broker" / MARK_FILE).write_text("{")
    emptied(home / "broker")
    with pytest.raises(JournalLostError, match=f"{MARK_FILE} next to it belongs to an earlier broker"):
        serve(home)


# ---- legitimate changes of a journal ----------------------------------------------------------------------


def test_mark_behind_the_journal_is_accepted(home: Path) -> None:
    """A power loss may lose the last updates of the mark, but not of the journal."""
    late = mark(home)
    serve(home)
    path = home / "broker" / MARK_FILE
    path.write_bytes(msgspec.json.encode(late))
    assert serve(home)[1] == 4
    assert mark(home).epoch == 4


def test_compacted_journal_is_accepted(home: Path) -> None:
    path = home / "broker" / JOURNAL_FILE
    cluster = mark(home).cluster
    for _ in range(4):
        serve(home)
    compacted(path)
    assert serve(home) == (cluster, 7)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT min(n) FROM entries").fetchone()[0] > 1


def test_mark_follows_each_commit(home: Path) -> None:
    with closing(Broker(settings(home))) as broker:
        first = mark(home)
        broker._step([])
        assert mark(home) == first, "nothing was committed"
        broker._journal.commit([read_journal(home / "backup.sqlite")[0].entry], broker._machine.now_s)
        broker._step([])
        assert mark(home).entries == first.entries + 1
        assert mark(home).crc == broker._journal.checksum_of(first.entries + 1)
        assert (home / "broker" / MARK_FILE).stat().st_mode & 0o777 == 0o600
    assert check(home / "broker" / JOURNAL_FILE).entries == mark(home).entries


def test_verb_exits_with_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emptied(home / "broker")
    words = ["broker", "--keys", str(home), "--address", "tcp://127.0.0.1:0", "--policy", "fifo"]
    assert run(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run([*words, "--standby", "--new-cluster"]) == 2
    assert "--new-cluster: omit --standby" in capsys.readouterr().err
