"""A journal on disk, and a broker without nodes on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.journal.journal import Journal
from tests.support.broker.hand import make
from tests.support.broker.hand_broker import HandBroker


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    return make(journal)
