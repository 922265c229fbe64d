"""`make checkpoint` is a command of `rlsched train`: on real traces where available."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.make_checkpoint import words
from benchmarks.training_data import REAL


def test_it_trains_on_available_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_DATA", str(tmp_path))
    said = words(["--recipe", "quick"])
    assert said[0] == "train"
    assert (said.count("--synthetic"), said.count("--trace")) == (3, 0)
    assert said[said.index("--out") + 1].endswith("checkpoints/tuned.toml")
    assert said[-2:] == ["--recipe", "quick"]
    (tmp_path / "traces").mkdir()
    for name in REAL:
        (tmp_path / "traces" / f"{name}.csv.gz").touch()
    said = words([])
    assert (said.count("--synthetic"), said.count("--trace"), said.count("--cluster")) == (0, 3, 3)
