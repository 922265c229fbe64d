"""The ranks of a node, as real processes that are killed after the test; a folder for a Slurm."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched_node.processes import shim
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.store import AttemptStore
from tests.support.online.ranks import own_children


@pytest.fixture
def slurm_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users may read, unlike the folders of pytest; `SLURM_CONF` is reset afterwards."""
    monkeypatch.setenv("SLURM_CONF", "")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path) -> AttemptStore:
    return AttemptStore(tmp_path)


@pytest.fixture(params=["forked", "spawned"])
def ranks(store: AttemptStore, request: pytest.FixtureRequest) -> Iterator[LiveRanks]:
    """A daemon's ranks. Their shims come from a forker, as usual with a subreaper, or without one."""
    is_forked = request.param == "forked"
    was_subreaper = shim.become_subreaper() if is_forked else False
    is_subreaper, spared = is_forked and was_subreaper, own_children()
    ranks = LiveRanks(store, is_subreaper=is_subreaper, shims=Shims(forks=is_forked), spared=spared)
    yield ranks
    for key in list(store.scan()):
        ranks.hard_kill(key)
    ranks.close()
    if is_forked:
        shim.prctl(36, 0)  # PR_SET_CHILD_SUBREAPER: off for the other tests
