"""Output of `rlsched predictor`: no values without data."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.state.predictions import Predictions
from rlsched.cli.operators.predictor import _print_report
from rlsched.wire.messages import StatsReport, decode, encode
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN
from tests.support.broker.hand import draft


def report(predictions: Predictions, now_s: float) -> StatsReport:
    """The report as received from the wire."""
    stats = StatsReport(
        policy="ppo", decisions={"policy": 3, "automatic": 2}, contested={"policy": 1}, queued=1, running=2,
        ended=4, uptime_s=7200.0, prediction=predictions.report(now_s),
    )  # fmt: skip
    message = decode(encode(stats)).message
    assert isinstance(message, StatsReport)
    return message


def with_history(kind: str, jobs: int) -> Predictions:
    predictions = Predictions(kind)
    for k in range(1, jobs + 1):
        (entry,) = predictions.predict([draft(k)], 100.0 * k)
        predictions.record_submission(entry, 100.0 * k)
        predictions.record_run_time(entry, 40.0, 100.0 * k + 60.0)
    return predictions


def test_new_broker_has_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    _print_report(report(Predictions(HEDGE), 5.0), 5.0)
    page = capsys.readouterr().out
    assert "boosting is not fitted yet (0 of 200 jobs have ended)" in page
    assert "last fitted" not in page
    assert "no figures for fewer than 20 jobs" in page
    assert "25.0 %" in page
    assert "0.00" not in page


def test_values_after_twenty_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    _print_report(report(with_history(RUNNING_MEAN, 20), 3000.0), 3000.0)
    page = capsys.readouterr().out
    assert "predictions: running-mean, learned from 20 jobs that ended" in page
    assert "no figures" not in page
    assert "weights" not in page
    (line,) = [line for line in page.splitlines() if line.lstrip().startswith("AUC, 1 day")]
    assert line.split()[3:] == ["-"] * 4, "all jobs were on one side"


def test_older_broker_without_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    _print_report(msgspec.structs.replace(report(Predictions(HEDGE), 5.0), prediction=None), 5.0)
    assert capsys.readouterr().out == "this broker reports no predictions and forecasts\n"
