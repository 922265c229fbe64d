"""`benchmarks/bench_environment.py`: all figures about a run are counted in it."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_environment.py"


def test_figures_have_their_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--seconds 0.02 --jobs 60"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split(), "--burn-in", "5"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows] == ["1", "16", "64"]
    for row in rows:
        assert int(row[1].replace(",", "")) > 0
        assert 0.0 <= float(row[2]) < int(row[1].replace(",", "")), "an episode has several decisions"
        assert float(row[3]) >= 0.0
        assert row[4] == f"`python benchmarks/bench_environment.py {options}`"


@pytest.mark.slow
def test_runs_of_windows_with_prices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--seconds 0.02 --jobs 60 --burn-in 5 --windows 12 --workers 1"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split()])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    line = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(r"Windows with prices: ([\d,]+) runs per hour of wall-clock time", line)
    assert found is not None, line
    assert int(found[1].replace(",", "")) > 0
