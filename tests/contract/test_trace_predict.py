"""`rlsched trace predict`: columns for evaluate, a JSON summary, one line for bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.installing import install_command
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import predict_trace, reference_end_s


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    trace, spec = synthesize("philly", 500, 0.9, 32, seed=3)
    trace.write(folder / "t.csv.gz")
    (folder / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
    return folder


def predicted(folder: Path, *options: str) -> Trace:
    assert run(["trace", "predict", str(folder / "t.csv.gz"), "-o", str(folder / "o.csv.gz"), *options]) == 0
    return Trace.read(folder / "o.csv.gz")


def test_columns_are_written_and_evaluate_uses_them(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got = predicted(files, "--cluster", str(files / "c.toml"), "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "hedge"
    assert report["jobs"] == len(got) == 500
    assert report["fits"] >= 1
    assert [row["than_s"] for row in report["longer"]] == [600, 3600, 14400, 86400]
    names = ("10min", "1h", "4h", "1d")
    longer = np.stack([got.extra[f"x_p_longer_{name}"].astype(np.float64) for name in names])
    assert (np.diff(longer, axis=0) <= 0).all()
    assert (got.predicted_spread > 0).all()
    _, spec = synthesize("philly", 500, 0.9, 32, seed=3)
    predictions = predict_trace(got, spec)
    np.testing.assert_array_equal(predictions.predicted_s, got.predicted_s)
    np.testing.assert_array_equal(predictions.spread, got.predicted_spread)


def test_history_equals_the_engine_s(files: Path) -> None:
    """On one node, jobs end later than recorded, so fewer ends are known at every arrival."""
    from rlsched.workload.predict.reference import replayed_end_s

    trace, spec = synthesize("philly", 500, 0.9, 32, seed=3)
    np.testing.assert_array_equal(replayed_end_s(trace, spec), reference_end_s(trace, spec))
    on_cluster = predicted(files, "--cluster", str(files / "c.toml"), "--model", "survival")
    recorded = predicted(files, "--as-recorded", "--model", "survival")
    assert not np.array_equal(on_cluster.predicted_s, recorded.predicted_s)
    np.testing.assert_array_equal(on_cluster.duration_s, recorded.duration_s)


def test_mean_or_median(files: Path) -> None:
    mean, median = (
        predicted(files, "--as-recorded", "--model", "nearest", "--point", p) for p in ("mean", "median")
    )
    own = mean.extra["x_predicted_median_s"].astype(np.float64)
    np.testing.assert_allclose(median.predicted_s, own, atol=0.06)
    assert mean.predicted_s.mean() > median.predicted_s.mean()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "expected either --cluster or --as-recorded"),
        (("--as-recorded", "--nodes", "3"), "--nodes scales a cluster"),
        (("--as-recorded", "--model", "magic"), "unknown model 'magic'; known: hedge"),
    ],
)
def test_bad_input_is_one_line(
    files: Path, options: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = files / "never.csv.gz"
    assert run(["trace", "predict", str(files / "t.csv.gz"), "-o", str(out), *options]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert len(said.strip().splitlines()) == 1
    assert not out.exists()


def test_missing_scikit_learn_names_its_extra(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    out = files / "never.csv.gz"
    assert run(["trace", "predict", str(files / "t.csv.gz"), "-o", str(out), "--as-recorded"]) == 2
    assert install_command("predict") in capsys.readouterr().err
    assert not out.exists()
