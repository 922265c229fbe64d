"""The ranks of a node, as real processes that are killed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched_node.processes import shim
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.store import AttemptStore
from tests.support.online.ranks import own_children


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
