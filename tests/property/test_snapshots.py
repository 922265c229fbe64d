"""A snapshot and the entries after it make the same broker as all entries, wherever it was taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import keep_snapshot
from rlsched.broker.journal.snapshots import book_of, picture_of
from tests.quick import quick
from tests.support.broker.broker_life import CASES, STEPS, born, go_on, put_together, shape
from tests.support.soak_size import times


def without_snapshots(path: Path, copy: Path) -> Journal:
    shutil.copy(path, copy)
    journal = Journal(copy)
    journal._db.execute("DELETE FROM snapshots")
    return journal


@pytest.mark.parametrize(
    "case",
    quick(CASES, lambda case: case[0] == "tuned", rest=pytest.mark.soak),
    ids=lambda case: f"{case[0]} {case[1]}",
)
@pytest.mark.parametrize("seed", quick(range(times(2)), lambda seed: seed == 0, rest=pytest.mark.soak))
def test_snapshot_and_later_entries_equal_all_entries(
    tmp_path: Path, case: tuple[str, str, float], seed: int
) -> None:
    path, chance = tmp_path / "journal.sqlite", Random(seed)
    journal = Journal(path)
    life = born(journal, case, seed)
    broker = life.broker
    cuts = sorted(chance.sample(range(10, STEPS), 3))
    for number in range(STEPS):
        life.step()
        if number in cuts:
            keep_snapshot(journal, broker.state, broker.machine.scheduler)
            assert shape(book_of(picture_of(broker.state))) == shape(broker.state)
    if seed == 0:  # as at a clean stop
        keep_snapshot(journal, broker.state, broker.machine.scheduler)
    assert broker.state.num_finished > 20
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()

    whole = without_snapshots(path, tmp_path / "whole.sqlite")
    shutil.copy(path, tmp_path / "cut.sqlite")
    cut = Journal(tmp_path / "cut.sqlite")
    books = [put_together(one, case) for one in (whole, cut)]
    assert shape(books[0]) == shape(books[1])
    assert books[1].jobs.keys() < books[0].jobs.keys(), "the snapshot was used"

    brokers, entries = go_on(life, (whole, cut), case, seed)
    assert len(entries[0]) > 50
    assert entries[0] == entries[1], "the brokers differ after the next events"
    assert shape(brokers[0].state) == shape(brokers[1].state)
