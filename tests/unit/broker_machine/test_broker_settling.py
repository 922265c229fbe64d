"""After a restore: what a tick costs where many jobs are being launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.strangers import Strangers
from rlsched.broker.replay import JOURNAL_FILE
from rlsched.wire.messages import ResumeNode
from tests.unit.broker_machine.hand import TICK, make, submit


def test_a_tick_asks_once_what_has_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broker" / JOURNAL_FILE
    before = make(Journal(path), nodes=2)
    before.journal.close()
    back_up(path, tmp_path / "copy.sqlite")
    restore(tmp_path / "copy.sqlite", path.parent)
    broker = make(Journal(path), nodes=2)
    for node in ("n0", "n1"):
        broker.ask(ResumeNode(node=node))
    for _ in range(8):
        broker.ask(submit(1))
    assert sum(job.state == "launching" for job in broker.book.jobs.values()) == 8
    asked, settled_s = 0, Strangers.settled_s

    def counted(strangers: Strangers) -> float:
        nonlocal asked
        asked += 1
        return settled_s(strangers)

    monkeypatch.setattr(Strangers, "settled_s", counted)
    broker.batch([TICK])
    assert asked <= 3, "not once a job"
    broker.journal.close()
