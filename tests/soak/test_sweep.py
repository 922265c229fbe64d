"""A short sweep with each target once; `make soak` runs the long one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.entries import NodeUp, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import records_by_number
from rlsched.decide.actions import Start
from tests.soak.sharing import USED_MIB, lacking
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


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short path: paths of sockets are limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def ends(directory: Path) -> list[RankEnded]:
    """Ends of ranks, from the journal."""
    rows = read_journal(directory / "broker" / "journal.sqlite")
    return [row.entry for row in rows if isinstance(row.entry, RankEnded)]


@pytest.mark.soak
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_kills_of_node_daemons_harm_no_job_that_shares_its_gpus(short_path: Path) -> None:
    """Every job that had started is adopted, starts no second time, and ends with its own exit code.

    No control daemon of MPS and no locked clock is left after a round. NVML lists the jobs' processes, and no
    daemon takes a process of an earlier daemon's job for a foreign one.
    """
    system = Ours(short_path, shares=True, only="node")
    try:
        sweep = Sweep(short_path, system, seed=11)
        assert system.gpus is not None
        gpus = system.gpus
        for number in range(times(4)):
            sweep.round(number)
        sweep.adoption(times(4), lambda: gpus.counts.adopted)
    finally:
        system.close()
    assert sweep.outcome.faults == []
    made = records_by_number(short_path / "broker").values()
    assert sum(isinstance(one.action, Start) and one.action.share_with >= 0 for one in made) > 0
    counts = gpus.counts
    assert min(counts.daemons, counts.locks) > 0, "jobs ran under MPS, and at lower clocks"
    assert counts.foreign == 0
    measured = [one.usage.gpu_memory_mib for one in ends(short_path) if one.usage is not None]
    assert USED_MIB in measured, "the memory of the jobs' processes is in the journal"
    assert min(counts.adopted) > 0, "a new node daemon adopted ranks, and control daemons of MPS"
