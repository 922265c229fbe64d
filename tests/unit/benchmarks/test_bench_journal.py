"""`benchmarks/bench_journal.py` loads the journals that it writes, from every kind of start."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_journal


@pytest.mark.slow
def test_every_kind_of_start_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_journal, "TAIL_JOBS", 60)
    monkeypatch.setattr(bench_journal, "KEEP_ENTRIES", 100)
    rows = bench_journal.starts(tmp_path, jobs=200, behind=300)
    assert [row["how"] for row in rows] == ["all entries", "snapshot", "tail", "base", "base, hedge"]
    assert all(row["start_s"] > 0 and row["peak_mb"] > 50 for row in rows)
    assert rows[-1]["disk_mb"] > 0
