"""`benchmarks/bench_journal.py` loads the journals that it writes, from every kind of start."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_journal.py"


@pytest.mark.slow
def test_every_kind_of_start_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--jobs", "200", "--behind", "300", "--json"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = json.loads(capsys.readouterr().out)["rows"]
    kinds = ["all entries", "snapshot", "tail", "base", "base, hedge"]
    assert [row["how"] for row in rows] == kinds * 2
    assert all(row["start_s"] > 0 and row["peak_mb"] > 50 for row in rows)
    assert rows[-1]["disk_mb"] > 0
