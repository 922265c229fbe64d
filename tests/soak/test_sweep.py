"""A short sweep with each target once; `make soak` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.base.entries import NodeUp
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import records_by_number
from rlsched.decide.actions import Start
from tests.soak.sweep import Sweep
from tests.soak.systems import NODES, Ours
from tests.support.soak_size import times


@pytest.mark.soak
def test_kills_lose_no_acknowledged_job_and_fail_no_other(tmp_path: Path) -> None:
    system = Ours(tmp_path)
    try:
        sweep = Sweep(tmp_path, system, seed=7)
        for number in range(times(len(system.targets))):
            sweep.round(number)
    finally:
        system.close()
    assert sweep.outcome.faults == []
    assert sweep.outcome.jobs > 5 * len(system.targets)
    if not system.left_out:
        seen = [row.entry for row in read_journal(tmp_path / "broker" / "journal.sqlite")]
        boots = {entry.boot_id for entry in seen if isinstance(entry, NodeUp)}
        assert len(boots) > len(NODES), "a node that reboots again before it registers counts once"
    if system.left_out:
        pytest.skip(f"all other targets passed; {system.left_out}")


@pytest.mark.soak
def test_kills_of_node_daemons_harm_no_job_that_shares_its_gpus(tmp_path: Path) -> None:
    """Every job that had started is adopted, starts no second time, and ends with its own exit code."""
    system = Ours(tmp_path, shares=True, only="node")
    try:
        sweep = Sweep(tmp_path, system, seed=11)
        for number in range(times(4)):
            sweep.round(number)
    finally:
        system.close()
    assert sweep.outcome.faults == []
    made = records_by_number(tmp_path / "broker").values()
    assert sum(isinstance(one.action, Start) and one.action.share_with >= 0 for one in made) > 0
