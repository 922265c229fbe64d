"""The GPU profile rehearsed: real children, real windows, on this machine's CPU."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "profile_catalogue.py"


def profile(*words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "node_daemon"))
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_a_rehearsal_measures_alone_in_pairs_and_on_few_cores_and_goes_on(tmp_path: Path) -> None:
    chosen = ("--rehearse", "--seconds", "1", "--out", str(tmp_path), "--workload", "cnn_large")
    done = profile(*chosen, "--budget-s", "120", "--kind", "alone")
    assert done.returncode == 0, done.stderr
    done = profile(*chosen, "--budget-s", "180", "--resume", str(tmp_path / "record.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "MPS needs a GPU" in done.stdout
    assert "a rehearsal has no GPU to look at" in done.stdout
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    fields = {(row["workload"], row["field"]) for row in rows}
    assert ("cnn_large-b4", "samples_per_s") in fields
    assert ("cnn_large-b4", "speed_on_1_cores") in fields
    assert {row["status"] for row in rows} == {"rehearsal"}
    with (tmp_path / "pairs.csv").open() as file:
        pairs = {(row["mode"], row["a"], row["b"]) for row in csv.DictReader(file)}
    assert ("timeslice", "cnn_large-b4", "cnn_large-b4") in pairs
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) > 4
