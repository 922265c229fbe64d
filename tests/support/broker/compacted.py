"""A journal whose earlier entries a base has replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.journal.journal import Journal


@contextmanager
def compacted(path: Path, until_s: float) -> Iterator[Journal]:
    """Compact the entries before a time, broker seconds, and open the journal."""
    cut = made(path, until_s)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
        while journal.drop(3):
            pass
        yield journal
