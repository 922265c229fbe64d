"""The shortened cases of look-ahead and bounds: kept jobs, predictions and reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from studies.policy import headroom
from studies.policy.cases import Case, read_trace, workload_of
from studies.policy.headroom import Waited
from studies.policy.predictions import stamps_of

DAY_S = 86400.0
CASE = Case(trace="t", part="train3", load=1.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    trace = Trace.from_columns(
        name="t",
        submit_s=np.sort(np.rint(rng.uniform(0, 20 * DAY_S, 3000))),
        duration_s=np.rint(rng.lognormal(8, 1.5, 3000)),
        num_gpus=rng.choice([1.0, 2.0, 8.0], 3000),
    )
    trace.write(tmp_path / "t.csv.gz")
    (tmp_path / "t.cluster.toml").write_text('name = "t"\n\n[[nodes]]\ncount = 8\ngpus = 8\n')
    read_trace.cache_clear()
    return tmp_path


def test_first_jobs_of_a_case_are_measured_and_half_as_many_follow(folder: Path) -> None:
    whole = workload_of(folder, CASE)
    predictions = stamps_of(CASE, whole)
    work, kept = headroom.shortened(whole, predictions, 100)
    measured = whole.trace.job_id[whole.window.measured(whole.trace)]
    assert work.trace.job_id[work.window.measured(work.trace)].tolist() == measured[:100].tolist()
    assert work.trace.job_id[-50:].tolist() == measured[100:150].tolist()
    np.testing.assert_array_equal(kept.predicted_s, predictions.predicted_s[: len(work.trace)])
    assert (work.window.since_s, work.spec) == (whole.window.since_s, whole.spec)
    assert headroom.shortened(whole, predictions, 10_000) == (whole, predictions)


def test_oracle_gets_the_true_run_times(folder: Path) -> None:
    work = workload_of(folder, CASE)
    work, predictions = headroom.shortened(work, stamps_of(CASE, work), 150)
    rule = Policy("qssf-backfill")
    fed = headroom.waited(work, predictions, Policy("qssf-backfill", predictions="oracle"))
    as_it_is = headroom.waited(work, predictions, rule)
    known = predictions._replace(
        predicted_s=np.fmin(work.trace.duration_s, work.trace.time_limit_s), spread=0 * predictions.spread
    )
    assert fed.queue_mean_s == headroom.waited(work, known, rule).queue_mean_s
    assert 0 < fed.queue_mean_s < as_it_is.queue_mean_s


def test_table_divides_by_the_reference_with_less_waiting() -> None:
    def one(queue_s: float, gangs_s: float | None, others_s: float) -> Waited:
        return Waited(
            jobs=1500, queue_mean_s=queue_s, gangs_mean_s=gangs_s, others_mean_s=others_s, wall_s=1.0
        )

    rows = {
        CASE: {
            "qssf": one(1000, 4000, 500),
            "qssf-backfill": one(2000, 1000, 100),
            "p": one(500, 6000, 100),
        },
        Case(trace="t/v", part="train3", load=0.85): {
            "qssf": one(800, None, 300),
            "qssf-backfill": one(400, None, 200),
            "p": one(800, None, 100),
        },
        Case(trace="t/w", part="train3", load=0.85): {
            "qssf": one(99, None, 99),
            "qssf-backfill": one(100, None, 10),
            "p": one(1, None, 1),
        },
    }
    lines = headroom.table(rows, ["p"]).splitlines()
    assert lines[2:] == [
        "| t, 1.05 | 1,500 | 1,000 (`qssf`) | 0.50 (1.50, 0.20) |",
        "| t/v, 0.85 | 1,500 | 400 (`qssf-backfill`) | 2.00 (, 0.50) |",
        "| t/w, 0.85 | 1,500 | 99 (`qssf`) | 0.01 (, 0.01) |",
        "| geometric mean (cases) | | | 1.000 (2) |",
    ]


def test_existing_results_are_not_run_again_and_the_test_part_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--traces",
        str(folder),
        "--trace",
        "t",
        "--load",
        "1.05",
        "--jobs",
        "60",
        "--predictions",
        "causal",
    ]
    words += ["--policy", "easy", "--out", str(folder / "out")]
    assert headroom.main([*words, "--part", "train3"]) == 0
    first = capsys.readouterr().out
    assert "| t, 1.05 | 60 |" in first
    monkeypatch.setattr(headroom, "waited", None)
    assert headroom.main([*words, "--part", "train3"]) == 0
    assert capsys.readouterr().out == first
    assert headroom.main([*words, "--part", "test"]) == 2
    assert "compare and bar read the test split" in capsys.readouterr().err
