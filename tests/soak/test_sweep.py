"""A short sweep of shots, each kind twice; `make soak` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.base.entries import NodeUp
from rlsched.broker.journal.reading import read_journal
from tests.soak.sweep import Sweep
from tests.soak.systems import NODES, Ours


@pytest.mark.slow
def test_whatever_is_shot_nothing_acknowledged_is_lost_and_nobody_innocent_fails(tmp_path: Path) -> None:
    system = Ours(tmp_path)
    try:
        sweep = Sweep(tmp_path, system, seed=7)
        for number in range(2 * len(system.targets)):
            sweep.round(number)
    finally:
        system.close()
    assert sweep.outcome.faults == []
    assert sweep.outcome.jobs > 10 * len(system.targets)
    if not system.left_out:
        seen = [row.entry for row in read_journal(tmp_path / "broker" / "journal.sqlite")]
        boots = {entry.boot_id for entry in seen if isinstance(entry, NodeUp)}
        assert len(boots) > len(NODES), "a node that is rebooted again before it registers is seen once"
    if system.left_out:
        pytest.skip(f"all other targets passed; {system.left_out}")
