"""`benchmarks/bench_environment.py`: all figures about a run are counted in it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_environment.py"


def test_figures_have_their_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--only target --seconds 0.02 --burn-in 20"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split()])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows] == [
        "64 clusters, 64 rows, load 1.05",
        "64 clusters, 64 rows, load 1.05, observations copied",
    ]
    for row in rows:
        assert int(row[1].replace(",", "")) > 0
        assert row[2] == "200,000 with 48 real rows"
        assert 24 < float(row[3]) <= 64
        used, critic = row[4].split(" + ")
        assert int(used) >= 18
        assert int(critic) == 9
        assert row[6] == f"`python benchmarks/bench_environment.py {options}`"
