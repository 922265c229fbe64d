"""A standby's book: the followed entries plus the tail equal the journal, even if it was replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.rows import JournalRow
from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import Journal
from rlsched.broker.standby.standby import stand_by
from rlsched.broker.standby.warm import JournalFollower, Warm
from rlsched.broker.state.broker_state import BrokerState
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalHeldError
from rlsched.files import lock as journal_lock
from rlsched.files.lock import Holder
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import make, run_one, submit
from tests.support.broker.hand_broker import HandBroker

POLICY = "fifo-backfill"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def cold() -> Warm:
    return Warm(load_scheduler(Policy.of(POLICY)), "", RUNNING_MEAN)


def facts(state: BrokerState) -> object:
    jobs = [
        (job.number, job.state, job.exit_code, job.end_s, job.spec.predicted_s) for job in state.jobs.values()
    ]
    cluster = state.cluster
    return (
        jobs,
        state.epoch,
        state.now_s,
        state.decisions,
        cluster.decisions,
        cluster.waiting(0),
        cluster.running(),
    )


def with_history(path: Path, jobs: int = 5) -> HandBroker:
    broker = make(Journal(path), nodes=2, policy=POLICY)
    for _ in range(jobs):
        run_one(broker, 7.0)
    return broker


def test_following_in_parts_equals_one_replay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsched.broker.standby.warm.PAGE", 3)
    broker, warm = with_history(path), cold()
    follower = JournalFollower(path, warm)
    while follower.step():
        pass
    assert warm.last == broker.journal.last > 20
    for gpus in (1, 8, 2):
        broker.ask(submit(gpus))
        while follower.step():
            pass
        assert warm.last == broker.journal.last
    follower.close()
    seen = warm.last
    broker.ask(submit(1))
    broker.journal.close()
    with_tail = Journal(path)
    replayed: list[int] = []
    rows = with_tail.rows

    def counted(after: int = 0) -> Iterator[JournalRow]:
        for row in rows(after):
            replayed.append(row.n)
            yield row

    monkeypatch.setattr(with_tail, "rows", counted)
    state = warm.catch_up(with_tail)
    assert replayed == list(range(seen + 1, with_tail.last + 1)), "only the tail"
    assert facts(state) == facts(cold().catch_up(with_tail)) == facts(broker.state)
    with_tail.close()


def test_restored_journal_is_followed_from_its_start(path: Path, tmp_path: Path) -> None:
    with_history(path, jobs=2).journal.close()
    back_up(path, tmp_path / "earlier.sqlite")
    broker, warm = with_history(path, jobs=3), cold()
    follower = JournalFollower(path, warm)
    assert not follower.step()
    assert len(warm.state.jobs) == 5
    broker.journal.close()
    restore(tmp_path / "earlier.sqlite", path.parent)
    assert not follower.step()
    assert len(warm.state.jobs) == 2
    follower.close()


def test_book_of_another_journal_is_discarded(path: Path, tmp_path: Path) -> None:
    with_history(path, jobs=2).journal.close()
    warm = cold()
    follower = JournalFollower(path, warm)
    follower.step()
    follower.close()
    other = make(Journal(tmp_path / "other.sqlite"), nodes=3, policy=POLICY)
    for _ in range(9):
        run_one(other, 3.0)
    assert other.journal.last > warm.last > 0
    assert facts(warm.catch_up(other.journal)) == facts(cold().catch_up(other.journal))
    other.journal.close()


def test_journal_of_another_machine_is_not_read_while_its_broker_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    broker, warm = with_history(path), cold()
    monkeypatch.setattr("rlsched.broker.standby.standby.boot_id", lambda: "another")
    stops = iter([False, False, True])
    assert stand_by(path, warm, said.append, lambda: next(stops)) is None
    assert warm.last == 0
    assert "another machine" in said[0]
    assert len(said) == 1
    broker.journal.close()
    taken = stand_by(path, warm, said.append, lambda: False)
    assert taken is not None
    journal = taken.open(path)
    assert len(warm.catch_up(journal).jobs) == 5
    with pytest.raises(JournalHeldError):
        Journal(path)
    journal.close()
    assert Holder.read(path).boot_id == journal_lock.boot_id()
