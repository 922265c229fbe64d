"""Plots redrawn from results on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.policy import learning_figures
from studies.policy.bar_studies import STUDIES
from studies.policy.learning_figures import STUDY_FIGURES, draw_study, main


def test_every_study_has_a_figure() -> None:
    drawn = {name for names in STUDY_FIGURES.values() for name in names}
    assert drawn | {"dial"} == set(STUDIES)


def test_missing_results_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["--results", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "studies.policy.bar" in capsys.readouterr().err
    assert main(["--only", "curves", "--logdir", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "expected event files" in capsys.readouterr().err


def test_study_is_drawn_from_best_to_worst_with_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    draw_study(axes, STUDIES["preempt100"], {"worse": [1.0, 4.0], "better": [0.5, 0.5]})
    assert [text.get_text() for text in axes.get_yticklabels()] == ["worse", "better"]
    assert "1" in [text.get_text() for text in axes.get_xticklabels()]
    lines = [list(map(float, line.get_xdata())) for line in axes.get_lines()]  # type: ignore[arg-type]
    assert lines[:4] == [[1.0, 4.0], [2.0, 2.0], [0.5, 0.5], [0.5, 0.5]], "dots, then the geometric mean"
    found = {"a": [0.5, 0.25]}
    monkeypatch.setattr(learning_figures, "study_ratios", lambda *_: found)
    assert main(["--only", "preemption", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "preemption.svg").read_text()
    assert text.count('<g id="axes_') == 2, "a panel for each of its two studies"


def test_curves_equal_the_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step, value in ((0, 1.0), (128, 0.75)):
            writer.add_scalar(learning_figures.TAG, value, step)
    assert learning_figures.curve(tmp_path / "run") == [(0, 1.0), (128, 0.75)]
    assert main(["--only", "curves", "--logdir", str(tmp_path / "run"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
