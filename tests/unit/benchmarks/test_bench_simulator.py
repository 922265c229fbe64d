"""`benchmarks/bench_simulator.py`: each figure has a command that measures it again."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_simulator.py"


def rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str
) -> list[list[str]]:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| what | setting | speed | CPU s | command |", "|---|---|---|---:|---|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.slow
def test_every_figure_has_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(
        capsys, monkeypatch, "--only", "rules", "--only", "decisions", "--jobs", "300", "--decisions", "80"
    )
    rules = ("fifo", "qssf", "fifo-backfill", "qssf-backfill", "tiresias", "gittins")
    assert [row[0] for row in found[:7]] == [
        *(f"compiled rule `{name}`" for name in rules),
        "one decision of `qssf-backfill`",
    ]
    commands = {row[4].strip("`") for row in found}
    assert commands == {
        f"python benchmarks/bench_simulator.py {options}"
        for options in ("--only rules --jobs 300", "--only decisions --decisions 80")
    }
    command = found[6][4].strip("`").split()
    again = rows(capsys, monkeypatch, *command[2:])
    assert [row[:2] for row in again] == [row[:2] for row in found[6:]]
