"""Value of learned predictions: caching, comparing and choosing arms."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.windows import MeasuredWindow
from studies.policy import information, information_users, predictions
from studies.policy.cases import Case, Foresight, Workload
from studies.policy.information import SETTINGS, Arm, Setting, table
from studies.policy.predictions import stamps_of

CASE = Case(trace="toy", part="train2", load=0.9)


def work() -> Workload:
    trace, spec = synthesize("helios", 250, 0.9, 32, seed=1)
    return Workload(trace, spec, MeasuredWindow(since_s=0.0, until_s=math.inf), 1.0)


def stamped(which: Foresight, folder: Path) -> predictions.PredictedTimes:
    return stamps_of(msgspec.structs.replace(CASE, predictions=which), work(), folder)


def test_one_fit_gives_means_medians_and_lognormals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = stamped("hedge-mean", tmp_path / "hedge")
    monkeypatch.delattr(predictions, "predict_at_submission")  # from here on the cache is read
    median, fitted = (stamped(which, tmp_path / "hedge") for which in ("hedge-median", "hedge-fitted"))
    assert [path.name for path in (tmp_path / "hedge").iterdir()] == ["toy-train2-0.9.npz"]
    np.testing.assert_array_equal(fitted.predicted_s, mean.predicted_s)
    assert (median.predicted_s < mean.predicted_s).mean() > 0.8
    known = mean.predicted_s > median.predicted_s
    again_s = median.predicted_s * np.exp(0.5 * fitted.spread**2)
    np.testing.assert_allclose(again_s[known], mean.predicted_s[known])
    assert (fitted.spread[~known] == 0.0).all()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_today_is_first_and_every_arm_has_a_separate_result(setting: Setting, tmp_path: Path) -> None:
    assert setting.arms[0][1] == "causal"
    paths = {setting.job(CASE, arm).path(tmp_path) for arm in setting.arms}
    assert len(paths) == len(setting.arms)


def test_best_arm_under_the_hedge_is_compared_with_its_plain_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = SETTINGS[1]
    best: Arm = (setting.policies[2], "hedge-median")

    def found(_: Setting, __: object, arm: Arm, ___: object) -> dict[str, float]:
        return {"a": 0.5 if arm == best else 1.1, "b": 0.9}

    monkeypatch.setattr(information, "ratios", found)
    assert information._best(setting, [CASE], tmp_path) == [setting.arms[0], best, (best[0], "causal")]


def test_table_has_means_of_all_cases_and_of_each_trace() -> None:
    rows = [("mine", {f"a-{k}": 0.5 for k in range(10)} | {"b-0": 2.0})]
    text = table("what", rows, {"a": [f"a-{k}" for k in range(10)], "b": ["b-0"], "c": ["c-0"]})
    assert "### what" in text
    assert text.splitlines()[-1] == "| mine | 0.567 [0.500, 0.730] | 10 of 11 | 0.500 | 2.000 | - |"


def test_hedge_learns_from_names_beyond_the_running_mean() -> None:
    trace, spec = synthesize("helios", 1200, 0.95, 32, seed=0, habit=0.9)
    rows = information_users.rows_of(trace, spec, 0.9)
    assert list(rows) == ["running mean", "hedge without names", "hedge", "best by name", "true"]
    assert rows["true"].rank == pytest.approx(1.0)
    assert rows["hedge"].rank > rows["hedge without names"].rank
    assert rows["true"].easy < min(rows[name].easy for name in list(rows)[:3])
