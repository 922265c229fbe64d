"""The ranks of a node, as real processes that are gone after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched_node.ranks import Ranks
from rlsched_node.store import AttemptStore


@pytest.fixture
def store(tmp_path: Path) -> AttemptStore:
    return AttemptStore(tmp_path)


@pytest.fixture
def ranks(store: AttemptStore) -> Iterator[Ranks]:
    ranks = Ranks(store)
    yield ranks
    for key in list(store.scan()):
        ranks.hard_kill(key)
    ranks.close()
