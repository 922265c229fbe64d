"""`studies/models/model_figures.py`: each figure exists and has its points; missing data are an error."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TITLES = {
    "clocks": "speed: RMSE 0.010",
    "caps": "P100: mean error 4.9 %",
    "sharing": "bands: largest error 0.0",
    "pairs": "P100: R2 0.77, MAE 0.047",
    "mig": "2g to 4g: MAE 0.037",
    "cores": "res50: needs 3.6",
    "catalogue": "families held out",
}
"""Words of a figure, as in the documents of the models."""


def run(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "studies.models.model_figures", *words],
        cwd=ROOT,
        env={
            **os.environ,
            "RLSCHED_DATA": str(data),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


SLOW = ["caps"]
"""A grid of half of all evaluations, for each of 217 curves."""


@pytest.mark.parametrize(
    "names", [sorted(TITLES.keys() - SLOW), pytest.param(SLOW, marks=pytest.mark.soak)], ids=["quick", "caps"]
)
def test_every_figure_is_drawn(shared_data: Path, tmp_path: Path, names: list[str]) -> None:
    only = [word for name in names for word in ("--only", name)]
    done = run(shared_data, "--out", str(tmp_path / "figures"), *only)
    assert done.returncode == 0, done.stderr
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == names
    for name in names:
        title = TITLES[name]
        text = (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        drawn = ET.fromstring(text)
        assert title in " ".join("".join(node.itertext()) for node in drawn.iter() if "text" in node.tag), (
            name
        )
        assert len([node for node in drawn.iter() if node.tag.endswith(("}use", "}path"))]) > 20, name
        assert "#0a0a0" not in text, f"{name}: a placeholder colour was left"


def test_missing_data_are_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--out", str(tmp_path / "figures"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: expected measured data in ")
    assert "RLSCHED_DATA" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "figures").exists()


def test_unknown_figure_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "clokcs")
    assert done.returncode == 2
    assert "invalid choice: 'clokcs'" in done.stderr
