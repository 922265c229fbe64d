"""Snapshots in the journal: which one is used, which are skipped with a log line, and the codec."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
from collections import OrderedDict, deque
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.numbers import NumberOfSeq, Numbers
from rlsched.broker.journal import codec, recovery, snapshot_keeper, snapshots
from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.codec import PictureError, pack, unpack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import keep_snapshot, recover_state
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.journal.snapshot_keeper import SnapshotKeeper, give_back
from rlsched.broker.journal.snapshots import picture_of
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Attempt, Job, Rank
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.quotas import Party
from rlsched.cluster.arrays import JOB, records
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError
from rlsched.wire.messages import Submitted
from rlsched.workload.predict.facts import JobFacts
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import draft, ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker

POLICY = "fifo-backfill"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker" / JOURNAL_FILE


def with_history(path: Path, snapshots: int = 2) -> HandBroker:
    """A broker with a snapshot after each of its first jobs; one more job has ended since."""
    broker = make(Journal(path), policy=POLICY)
    broker.says("n0", hello("n0"))
    for job in range(1, snapshots + 2):
        broker.ask(submit(4))
        broker.says("n0", launched(job))
        broker.says("n0", ended(job))
        if job <= snapshots:
            keep_snapshot(broker.journal, broker.state, broker.machine.scheduler)
    broker.ask(submit(4))
    return broker


def kept(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [n for (n,) in db.execute("SELECT n FROM snapshots ORDER BY n")]


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def reopened(path: Path, policy: str = POLICY) -> tuple[BrokerState, list[str], int]:
    """The book, the log lines, and the number of replayed entries."""
    said: list[str] = []
    replayed = 0

    class Counting(Journal):
        def rows(self, after: int = 0) -> Any:
            nonlocal replayed
            for row in super().rows(after):
                replayed += 1
                yield row

    with closing(Counting(path)) as journal:
        state = recover_state(journal, Predictions(RUNNING_MEAN), load_scheduler(policy), said.append)
    return state, said, replayed


def test_newest_snapshot_is_used_and_later_entries_replayed(path: Path) -> None:
    broker = with_history(path, snapshots=4)
    last = broker.journal.last
    broker.journal.close()
    assert len(kept(path)) == 2
    state, said, replayed = reopened(path)
    assert (said, replayed) == ([], last - kept(path)[-1])
    assert {job.number: job.state for job in state.jobs.values()} == {5: "completed", 6: "launching"}
    assert (state.num_finished, len(state.numbers)) == (5, 6)


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        ("UPDATE snapshots SET crc = crc + 1 WHERE n = ?", "is damaged: its checksum does not fit"),
        ("UPDATE snapshots SET picture = x'00' WHERE n = ?", "is damaged: its checksum does not fit"),
        ("UPDATE snapshots SET made_for = 'me' WHERE n = ?", "is damaged: its checksum does not fit"),
        ("UPDATE snapshots SET made_for = x'ff' WHERE n = ?", "is damaged: its checksum does not fit"),
        ("UPDATE snapshots SET entry_crc = 'x' WHERE n = ?", "is damaged: its checksum does not fit"),
    ],
)
def test_damaged_snapshot_is_skipped_with_a_log_line(path: Path, harm: str, line: str) -> None:
    broker = with_history(path)
    last = broker.journal.last
    broker.journal.close()
    older, newer = kept(path)
    change(path, harm, newer)
    state, said, replayed = reopened(path)
    assert said == [f"journal: the snapshot after entry {newer} {line}; its entries are replayed"]
    assert replayed == last - older
    change(path, harm, older)
    whole, said, replayed = reopened(path)
    assert (len(said), replayed) == (2, last)
    assert whole.cluster.digest() == state.cluster.digest()
    assert any(f"the snapshot after entry {newer} is damaged" in line for line in check(path).derived)


def put(path: Path, **changes: Any) -> int:
    """Write the newest snapshot again, changed but with a correct checksum."""
    with closing(Journal(path)) as journal:
        newest = next(journal.snapshots.newest_first())
        assert not isinstance(newest, str)
        journal.snapshots.store_snapshot(newest._replace(**changes))
        journal._db.execute("DELETE FROM snapshots WHERE n < ?", (newest.n,))
        return newest.n


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"format": 99}, "was made with another version, policy or predictor"),
        ({"made_for": "another"}, "was made with another version, policy or predictor"),
        ({"entry_crc": 1}, "belongs to another journal"),
        ({"picture": b"nothing"}, "cannot be read (error: Error -3"),
        ({"picture": pack([1, 2])}, "cannot be read (expected the state of a broker, got another object)"),
    ],
)
def test_snapshot_of_another_journal_is_skipped_with_a_log_line(
    path: Path, changes: dict[str, Any], line: str
) -> None:
    broker = with_history(path)
    last = broker.journal.last
    broker.journal.close()
    n = put(path, **changes)
    _, [said], replayed = reopened(path)
    assert said.startswith(f"journal: the snapshot after entry {n} {line}")
    assert replayed == last


def test_another_policy_or_other_code_replays_everything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_history(path)
    last = broker.journal.last
    broker.journal.close()
    for policy, whole in (("sjf-backfill", True), (POLICY, False)):
        assert reopened(path, policy)[2] == (last if whole else last - kept(path)[-1])
    monkeypatch.setattr(snapshots, "code_digest", lambda: "other")
    _, said, replayed = reopened(path)
    assert (len(said), replayed) == (2, last)


@pytest.mark.parametrize("folder", codec._FOLDERS)
def test_changed_code_changes_the_digest(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = codec.code_digest.__wrapped__
    before = digest()
    for name in codec._FOLDERS:
        shutil.copytree(codec._ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(codec, "_ROOT", tmp_path)
    assert digest() == before
    changed = min((tmp_path / folder).rglob("*.py"))
    changed.write_text(changed.read_text() + "\n")
    assert digest() != before


def test_outdated_table_of_ended_jobs_replays_everything(path: Path) -> None:
    broker = with_history(path)
    last = broker.journal.last
    broker.journal.forget_ended()
    broker.journal.close()
    _, said, replayed = reopened(path)
    assert replayed == last
    assert "the table of ended jobs does not reach the snapshot" in said[0]
    assert (check(path).damage, check(path).derived) == ([], [])
    assert reopened(path)[2] < last


def test_full_disk_keeps_the_previous_snapshot(path: Path) -> None:
    broker = with_history(path)
    before = kept(path)
    pages = broker.journal._db.execute("PRAGMA page_count").fetchone()[0]
    broker.journal._db.execute(f"PRAGMA max_page_count={pages}")
    chance = np.random.default_rng(1)
    broker.state.outcomes["x" * 200_000] = 1
    broker.state.predictions._mean._sums["noise", 1] = (1, 0.0, 0.0)
    noise = "".join(map(str, chance.integers(0, 10, 500_000).tolist()))
    broker.state.outcomes[noise] = 1
    with pytest.raises(JournalError, match="full"):
        keep_snapshot(broker.journal, broker.state, broker.machine.scheduler)
    broker.journal.close()
    assert kept(path) == before


def test_restored_backup_uses_its_snapshot(path: Path, tmp_path: Path) -> None:
    broker = with_history(path)
    back_up(path, tmp_path / "backup.sqlite")
    broker.says("n0", launched(4))
    keep_snapshot(broker.journal, broker.state, broker.machine.scheduler)
    broker.journal.close()
    restore(tmp_path / "backup.sqlite", path.parent)
    state, said, replayed = reopened(path)
    assert said == []
    assert replayed < state.num_finished * 5
    with closing(Journal(path)) as journal:
        again = make(journal, policy=POLICY)
        assert again.ask(submit(1)) == Submitted(job=1_000_001)


# ---- times ------------------------------------------------------------------------------------------------


def test_snapshots_are_rare_and_taken_in_idle_turns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_history(path, snapshots=0)
    monkeypatch.setattr(snapshot_keeper, "ENTRIES", 20)
    monkeypatch.setattr(snapshot_keeper, "ENTRIES_AT_LAST", 30)
    now_s, step_s = 0.0, 0.0
    said: list[str] = []

    def elapsed() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    def until(last: int) -> None:
        while broker.journal.last < last:
            broker.ask(submit(1))

    keeper = SnapshotKeeper(broker.journal, said.append, elapsed)
    until(19)
    assert not keeper.is_snapshot_due(is_quiet=True)
    until(20)
    assert keeper.is_snapshot_due(is_quiet=True)
    assert not keeper.is_snapshot_due(is_quiet=False)
    until(30)
    assert keeper.is_snapshot_due(is_quiet=False)
    step_s = 0.5
    keeper.keep(broker.state, broker.machine.scheduler)  # takes half a second
    assert kept(path) == [30]
    until(60)
    step_s, now_s = 0.0, 100.0
    assert not keeper.is_snapshot_due(is_quiet=True), "at most half a percent of the time"
    now_s = 102.0
    assert keeper.is_snapshot_due(is_quiet=False)
    broker.state.outcomes["x"] = open  # type: ignore[assignment]
    keeper.keep(broker.state, broker.machine.scheduler)
    assert kept(path) == [30]
    assert said[0].startswith("journal: no snapshot could be kept: ")
    keeper.keep(broker.state, broker.machine.scheduler)
    assert len(said) == 1, "not tried again for the same entries"
    broker.journal.close()


# ---- codec ------------------------------------------------------------------------------------------------


def test_round_trip_preserves_everything() -> None:
    shared = [1, 2]
    spec = msgspec.structs.replace(draft(3), predicted_s=1.0, spread=0.5)
    job = Job(3, spec, 1.0, 0, "running", Attempt(1, 1.0, [Rank("n0", [0])], 1, "rule", leaving={(1, 2)}))
    array = records(3, JOB)
    array.seq[:] = [4, 5, 6]
    read_only = np.arange(6.0).reshape(2, 3)
    read_only.flags.writeable = False
    things = {
        ("a", 1): [None, True, -5, 1 << 62, 0.1, float("inf"), "é", b"\xff"],
        2: (shared, shared, deque([1, 2], maxlen=2), {1, 2}, frozenset("a"), OrderedDict(a=1)),
        "job": (job, {7: job}),
        "arrays": (array, read_only, np.zeros((0, 2), np.int32), np.float32(0.5)),
        "facts": JobFacts("1", 2.0, limit_s=float("nan")),
        "keys": {Party("user", "ada"): {Party("user", "bob"): shared}},
    }
    again = unpack(pack(things))
    assert list(again) == list(things)
    assert again["a", 1] == things["a", 1]
    first, second, *others = again[2]
    assert first is second
    assert others == list(things[2][2:])
    assert (others[0].maxlen, type(others[3])) == (2, OrderedDict)
    assert again["job"][0] is again["job"][1][7]
    assert again["job"][0] == job
    records_again, read_again, empty, number = again["arrays"]
    assert (type(records_again), records_again.dtype, records_again.dtype.isalignedstruct) == (
        np.recarray,
        array.dtype,
        True,
    )
    assert records_again.tobytes() == array.tobytes()
    assert (read_again.flags.writeable, read_again.tolist(), empty.shape) == (
        False,
        read_only.tolist(),
        (0, 2),
    )
    assert (type(number), number) == (np.float32, 0.5)
    ((ada, of_ada),) = again["keys"].items()
    assert (ada.name, next(iter(of_ada)).name, of_ada.popitem()[1]) == ("ada", "bob", [1, 2])
    assert isinstance(again["facts"], JobFacts)
    assert again["facts"].gpus == 2.0


@pytest.mark.parametrize("thing", [lambda: 1, Path("x"), open, np.array([object()]), sqlite3, 1j, 1 << 70])
def test_unsupported_types_are_refused(thing: object) -> None:
    with pytest.raises(PictureError):
        pack([thing])


def packed(classes: list[list[str]], thing: object) -> bytes:
    import zlib

    return zlib.compress(msgspec.msgpack.encode([classes, thing]))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x00" * 50,
        packed([["os:system", "x"]], [codec._OBJECT, 0, "true"]),
        packed([["rlsched.broker.journal.journal:Journal.commit"]], [codec._OBJECT, 0]),
        packed([["rlsched.cli.main:run"]], [codec._OBJECT, 0]),
        packed([["rlsched.broker.journal.reading:read_journal"]], [codec._OBJECT, 0]),
        packed([["rlsched.broker.state.jobs:Job", "number"]], [codec._OBJECT, 0, 1]),
        packed([["rlsched.broker.jobs.jobs:Job", "number"]], [codec._OBJECT, 0, 1]),  # of an older version
        packed([["rlsched.broker.state.gpu_handover:GpuHandover", "emptied"]], [codec._OBJECT, 0, 1, 2]),
        packed([], [codec._AGAIN, 0]),
        packed([], [codec._LIST, [codec._DICT, 1, [codec._AGAIN, 1]], [77]]),
        packed([], [codec._ARRAY, "<f8", [1 << 50], False, True, b""]),
        packed([], [codec._ARRAY, "O", [1], False, True, b"12345678"]),
        packed([], [codec._OBJECT, 0]),
        pack([1, 2, 3])[:-3],
    ],
)
def test_malformed_snapshot_is_refused_and_calls_nothing(bad: bytes) -> None:
    with pytest.raises(PictureError):
        unpack(bad)


def test_every_object_of_a_book_can_be_serialised(path: Path) -> None:
    """Fails if a new object of the book is missing in its snapshot."""
    broker = with_history(path)
    again = unpack(picture_of(broker.state))
    assert vars(again).keys() == vars(broker.state).keys()
    assert again.cluster.arrays.order.code is again.cluster.ordering.arrays.code
    assert recovery.MOST_ENDED > 0
    broker.journal.close()


# ---- numbers ----------------------------------------------------------------------------------------------


def test_numbers_are_a_sorted_list() -> None:
    chance = np.random.default_rng(3)
    numbers, plain = Numbers(), []
    last = 0
    for step in chance.choice([1, 1, 1, 5, 1_000], 300).tolist():
        last += step
        numbers.append(last)
        plain.append(last)
    assert (len(numbers), len(Numbers())) == (300, 0)
    assert numbers.numbers_between(0, 300) == plain
    assert numbers.numbers_between(-5, 1_000) == plain
    assert numbers.numbers_between(17, 40) == plain[17:40]
    for number in (*plain, *(one + 1 for one in plain), -1, 0, 10**9):
        assert numbers.below(number) == sum(one < number for one in plain)
        assert (number in numbers) == (number in plain)
    assert (5 in Numbers(), Numbers().below(3)) == (False, 0)


def test_numbers_by_seq() -> None:
    found, plain = NumberOfSeq(), {}
    for seq, number in enumerate([1, 2, 4, 5, 6, 1_000, 1_001]):
        found.add(seq, number)
        plain[seq] = number
    assert {seq: found.get(seq) for seq in range(-1, 9)} == {seq: plain.get(seq) for seq in range(-1, 9)}
    with pytest.raises(KeyError):
        found[7]
    with pytest.raises(KeyError):
        NumberOfSeq()[0]


def test_free_memory_is_returned_to_the_system() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library decides by itself when to return memory")

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pieces = [bytes(2_000) for _ in range(40_000)]
    del pieces[:-1]  # the last block lies above all others, so that they are not returned automatically
    before = resident_bytes()
    give_back()
    assert resident_bytes() < before - 40_000_000
