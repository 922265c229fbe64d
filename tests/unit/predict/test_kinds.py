"""Predictors by name: the default, and cached fits."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.predict import at_submission, causal_predictions, kinds
from rlsched.workload.predict.kinds import (
    HEDGE,
    RUNNING_MEAN,
    chosen_kind,
    hedge_predictions,
    kind_for,
)
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.simulate import simulate
from rlsched_envs.sim.engine import predict_trace, reference_end_s


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of cached predictions."""
    monkeypatch.setattr(kinds, "_folder", lambda: tmp_path / "kept")
    return tmp_path / "kept"


def drawn(seed: int = 1) -> tuple[Trace, ClusterSpec]:
    return synthesize("helios", 250, 0.9, 32, seed=seed, habit=0.8)


def test_default_does_not_depend_on_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    named, spec = drawn()
    assert chosen_kind(None) == chosen_kind(HEDGE) == kind_for(named) == HEDGE
    assert chosen_kind(RUNNING_MEAN) == RUNNING_MEAN
    monkeypatch.setattr(kinds, "sklearn_installed", lambda: False)
    assert chosen_kind(None) == kind_for(named) == HEDGE
    for needs_it in (
        lambda: chosen_kind(HEDGE),
        lambda: predict_trace(named, spec, kind=HEDGE),
        lambda: simulate(named, spec, ["qssf"]),
    ):
        with pytest.raises(InputError, match=r"needs scikit-learn.* install .*--prediction running-mean"):
            needs_it()
    assert simulate(named, spec, ["fifo"]).prediction == HEDGE, "no policy gets a prediction"
    predicted, _ = synthesize("helios", 250, 0.9, 32, seed=1, predictability=1.0)
    assert predict_trace(predicted, spec, kind=HEDGE).predicted_s is not None
    with pytest.raises(InputError, match="unknown --prediction 'oracle'; known: running-mean, hedge"):
        chosen_kind("oracle")


def test_fit_is_cached_for_the_same_jobs_and_history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _ = drawn()
    end_s, done = recorded_end_s(trace), list[float]()
    first = hedge_predictions(trace, end_s, progress=done.append)
    assert done
    assert len(list(folder.iterdir())) == 1
    fits = list[int]()
    fit = at_submission.predict_at_submission

    def counted(*args: object, **more: object) -> object:
        fits.append(1)
        return fit(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(at_submission, "predict_at_submission", counted)
    for mine, kept in zip(first, hedge_predictions(trace, end_s), strict=True):
        np.testing.assert_array_equal(mine, kept)
    assert not fits
    hedge_predictions(trace, end_s + 1.0)
    other, _ = drawn(seed=2)
    hedge_predictions(other, recorded_end_s(other))
    assert len(fits) == 2


def test_damaged_file_is_made_again_and_old_ones_are_removed(folder: Path) -> None:
    trace, _ = drawn()
    end_s = recorded_end_s(trace)
    first = hedge_predictions(trace, end_s)
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    old = folder / "old.npz"
    old.write_bytes(b"")
    month_ago = time.time() - 31 * 86400.0
    os.utime(old, (month_ago, month_ago))
    again = hedge_predictions(trace, end_s)
    np.testing.assert_array_equal(first[0], again[0])
    assert list(folder.iterdir()) == [path]
    with np.load(path) as file:
        assert set(file.files) == {"predicted_s", "spread"}


def test_unwritable_cache_costs_only_time(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    trace, _ = drawn()
    predicted_s, _ = hedge_predictions(trace, recorded_end_s(trace))
    assert np.isfinite(predicted_s).all()


@pytest.mark.usefixtures("folder")
def test_simulation_names_the_predictor_and_prefers_the_trace() -> None:
    trace, spec = drawn()
    mean = predict_trace(trace, spec)
    np.testing.assert_array_equal(mean.predicted_s, predict_trace(trace, spec, kind=RUNNING_MEAN).predicted_s)
    hedge = predict_trace(trace, spec, kind=HEDGE)
    assert (hedge.predicted_s != mean.predicted_s).any()
    runs = {kind: simulate(trace, spec, ["qssf"], prediction=kind) for kind in (HEDGE, RUNNING_MEAN)}
    assert {kind: one.compare().prediction for kind, one in runs.items()} == {kind: kind for kind in runs}
    assert simulate(trace, spec, ["fifo"]).prediction == HEDGE
    nobody = np.full(len(trace), "")
    nameless = replace(trace, user=nobody, job_name=nobody)
    assert simulate(nameless, spec, ["qssf"]).prediction == kind_for(nameless) == RUNNING_MEAN
    assert kind_for(nameless, HEDGE) == HEDGE
    commanded = replace(nameless, extra={**nameless.extra, "x_command": np.full(len(trace), "python a.py")})
    assert kind_for(commanded) == HEDGE
    starts = [one["qssf"].jobs.start_s for one in runs.values()]
    assert (starts[0] != starts[1]).any()
    told, _ = synthesize("helios", 250, 0.9, 32, seed=1, predictability=1.0)
    np.testing.assert_array_equal(predict_trace(told, spec, kind=HEDGE).predicted_s, told.predicted_s)


def test_running_mean_is_a_separate_predictor() -> None:
    trace, spec = drawn()
    theirs = causal_predictions(trace, reference_end_s(trace, spec))
    for mine, other in zip(predict_trace(trace, spec, kind=RUNNING_MEAN), theirs, strict=True):
        np.testing.assert_array_equal(mine, other)
