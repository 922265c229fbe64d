"""The report of `rlsched trace describe`, by hand on a small trace."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.terminal.show import finite, in_words, percent
from rlsched.workload.describe import describe, spearman
from rlsched.workload.trace import Trace


def make_trace() -> Trace:
    return Trace.from_columns(
        name="small",
        submit_s=[0, 0, 3600, 7200, 7200],
        duration_s=[3600, 7200, 3600, 3600, 36000],
        num_gpus=[1, 8, 0, 0.5, 16],
        vc=["a", "a", "b", "b", "b"],
        user=["ann", "bob", "ann", "", ""],
        status=["ok", "ok", "failed", "", ""],
        predicted_s=[1, 2, np.nan, np.nan, 4],
    )


def test_whole_report() -> None:
    spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=8, vc="a"), NodeGroup(gpus=8, vc="b")))
    report = describe(make_trace(), spec)
    assert report["jobs"] == 5
    assert report["span_s"] == 7200
    assert report["gpu_time_h"] == 1 + 16 + 0.5 + 160
    assert report["gpus_in_demand_mean"] == pytest.approx(177.5 / 2)
    assert report["users"] == 2
    assert report["vcs"] == 2
    assert report["statuses"] == {"ok": 2, "failed": 1}
    assert report["durations"]["p50_s"] == 3600
    assert report["durations"]["max_s"] == 36000
    assert [(row["gpus"], row["jobs"]) for row in report["sizes"]] == [
        ("CPU only", 1),
        ("share", 1),
        ("1", 1),
        ("8", 1),
        ("9-16", 1),
    ]
    assert sum(row["gpu_time_frac"] for row in report["sizes"]) == pytest.approx(1)
    assert report["predictions"]["jobs"] == 3
    assert report["predictions"]["spearman"] == pytest.approx(1)
    arrivals = report["arrivals"]
    assert arrivals["per_day_mean"] == 60
    assert arrivals["same_second_frac"] == 0.5
    assert arrivals["busiest_hours"][0] == {"start_s": 0.0, "jobs": 2, "gpu_time_h": 17.0}
    assert arrivals["by_hour_of_day"][:4] == [2, 1, 2, 0]
    cluster = report["cluster"]
    assert cluster["load_frac"] == pytest.approx(17.5 / 32)
    assert cluster["never_run"] == 2
    assert cluster["jobs_that_can_run"] == 3
    assert sum(cluster["never_run_by_reason"].values()) == 2
    assert cluster["by_vc"] == [
        {"vc": "a", "gpus": 8, "jobs": 2, "load_frac": pytest.approx(17 / 16)},
        {"vc": "b", "gpus": 8, "jobs": 3, "load_frac": pytest.approx(0.5 / 16)},
    ]
    json.dumps(report, allow_nan=False)


def test_one_job_has_no_rate_and_no_load() -> None:
    trace = Trace.from_columns(name="one", submit_s=[5], duration_s=[60], num_gpus=[1])
    report = describe(trace, ClusterSpec.uniform(1))
    assert report["gpus_in_demand_mean"] is None
    assert report["predictions"] is None
    assert report["arrivals"]["gap_p50_s"] is None
    assert report["cluster"]["load_frac"] is None
    json.dumps(report, allow_nan=False)


def test_spearman_by_hand() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(a, a**3) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    assert spearman(a, np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(4 / np.sqrt(20))
    assert spearman(a, np.ones(4)) is None


def test_formats_of_numbers() -> None:
    assert [in_words(x) for x in (0.0, 59, 90, 5400, 200000, None, float("nan"))] == [
        "0 s",
        "59 s",
        "1.5 min",
        "1.5 h",
        "2.3 d",
        "-",
        "-",
    ]
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == "-"
    report = {"a": [1.0, float("nan")], "b": (float("inf"), "x")}
    assert finite(report) == {"a": [1.0, None], "b": [None, "x"]}
