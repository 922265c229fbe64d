"""`benchmarks/bench_board.py` measures a readable store."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_board.py"


def test_figures_are_of_the_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--decisions", "300", "--json"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    report = json.loads(capsys.readouterr().out)
    assert report["decisions"] == 300
    assert report["written_per_s"] > 0
    assert 0 < report["bytes_per_decision"] < 10_000
    assert report["overview_mib"] > 0
    assert (report["parts"], "earlier_s" in report) == (1, False)


def test_store_that_does_not_fit_on_the_disk_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--decisions", str(10**15)])
    with pytest.raises(SystemExit, match="MiB of free disk space, got"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
