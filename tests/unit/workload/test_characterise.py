"""The numbers that characterise a trace, against small traces solved by hand."""

from __future__ import annotations

import json
from datetime import datetime

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.characterise.clock import WeekClock
from rlsched.workload.characterise.outcomes import outcome_of
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.characterise.sizes import SIZE_CLASSES, size_class
from rlsched.workload.characterise.usage import HeldGpus
from rlsched.workload.describe import describe
from rlsched.workload.trace import Trace

HOUR = 3600.0
DAY = 86400.0
NAN = float("nan")


def make_day() -> Trace:
    """Four jobs on two GPUs; the third waits an hour for the second, the last one's wait is unknown."""
    return Trace.from_columns(
        name="a day",
        submit_s=[0, 0, HOUR, 4 * HOUR],
        duration_s=[2 * HOUR, 2 * HOUR, HOUR, HOUR],
        num_gpus=[1, 1, 2, 1],
        user=["ann", "bob", "ann", ""],
        job_name=["fit", "fit", "fit", "try"],
        vc=["a", "a", "b", "a"],
        status=["COMPLETED", "FAILED", "CANCELLED by 7", ""],
        extra={"queue_s": [0, 0, HOUR, NAN]},
    )


# ---- GPUs over time ---------------------------------------------------------------------------------------


def test_held_gpus_are_the_area_below_the_steps() -> None:
    held = HeldGpus(np.array([0.0, 10.0]), np.array([20.0, 5.0]), np.array([1.0, 4.0]))
    assert held.gpu_seconds(np.array([-5.0, 0, 10, 12, 20, 30])).tolist() == [0, 10, 10, 8 + 12, 0]


def test_held_gpus_stay_exact_for_times_since_1970() -> None:
    since = 1.7e9
    held = HeldGpus(since + np.arange(1000.0), np.full(1000, 0.5), np.full(1000, 0.25))
    assert held.gpu_seconds(np.array([since + 500, since + 501])).tolist() == [0.125]


def test_utilisation_counts_jobs_with_a_known_wait() -> None:
    found = describe(make_day(), ClusterSpec.uniform(1, 2))["utilisation"]
    assert (found["jobs"], found["left_out"], found["capacity_gpus"]) == (3, 1, 2)
    assert found["by_hour_gpus"][:5] == [2, 2, 2, 0, None]
    assert found["by_hour_of_week_gpus"][0][:4] == [2, 2, 2, 0]
    assert found["by_hour_of_week_gpus"][1] == [None] * 24
    assert found["by_weekday_gpus"] == [1.5, *[None] * 6]
    assert found["mean_gpus"] == 1.5
    assert found["mean_frac"] == 0.75


def test_without_waits_utilisation_and_waiting_name_the_column() -> None:
    trace = Trace.from_columns(name="bare", submit_s=[0, 60], duration_s=[60, 60], num_gpus=[1, 1])
    report = describe(trace)
    assert report["utilisation"]["missing"] == ["queue_s"]
    assert report["waiting"]["missing"] == ["queue_s"]
    assert report["over_time"]["gpus_in_use"] is None
    assert report["by_user"]["missing"] == ["user"]
    assert report["by_vc"]["missing"] == ["vc"]
    assert report["repeats"]["missing"] == ["name"]
    assert report["outcomes"]["missing"] == ["status"]


def test_load_over_time_sums_to_the_offered_load() -> None:
    rng = np.random.default_rng(1)
    trace = Trace.from_columns(
        name="month",
        submit_s=np.sort(rng.uniform(1000, 30 * DAY, 500)),
        duration_s=rng.exponential(HOUR, 500),
        num_gpus=rng.choice([1, 2, 99], 500),
    )
    report = describe(trace, ClusterSpec.uniform(2, 8))
    found = report["over_time"]
    width = np.array(found["width_s"])
    assert sum(found["jobs"]) == 500
    assert width.sum() == pytest.approx(report["span_s"])
    assert (np.array(found["load_frac"]) * width).sum() / width.sum() == pytest.approx(
        report["cluster"]["load_frac"]
    )
    assert (np.array(found["offered_gpus"]) * width).sum() / 3600 == pytest.approx(report["gpu_time_h"])
    assert found["capacity_gpus"] == 16


def test_offered_demand_and_held_in_hours() -> None:
    found = describe(make_day(), ClusterSpec.uniform(1, 2))["over_time"]
    assert found["start_s"] == [0, HOUR, 2 * HOUR, 3 * HOUR]
    assert found["jobs"] == [2, 1, 0, 1]
    assert found["offered_gpus"] == [4, 2, 0, 1]
    assert found["gpus_in_demand"] == [2, 4, 0, 0]
    assert found["gpus_in_use"] == [2, 2, 2, 0]
    assert found["load_frac"] == [2, 1, 0, 0.5]


def test_one_instant_has_no_time() -> None:
    trace = Trace.from_columns(
        name="one", submit_s=[5, 5], duration_s=[60, 60], num_gpus=[0, 0], extra={"queue_s": [0, 0]}
    )
    report = describe(trace, ClusterSpec.uniform(1))
    assert report["over_time"]["missing"] == []
    assert report["utilisation"]["missing"] == []
    assert "one instant" in report["over_time"]["say"]
    assert report["week"]["gpus_in_demand"] is None
    assert report["sizes"][0]["gpu_time_frac"] is None
    assert report["duration_curves"]["gpu_time_frac"] is None
    json.dumps(report, allow_nan=False)


# ---- hours and weekdays -----------------------------------------------------------------------------------


def test_hours_are_relative_to_the_origin_unless_it_is_known() -> None:
    trace = make_day()
    jobs = describe(trace)["week"]["jobs_per_hour"]
    assert jobs[0][:5] == [2, 1, 0, 0, 1]
    assert describe(trace)["clock"] == {"origin": None, "days": [f"day {k}" for k in range(1, 8)]}
    known = describe(trace, origin=datetime(2020, 4, 1, 22, 30))  # a Wednesday
    assert known["clock"]["days"][2] == "Wednesday"
    assert known["week"]["jobs_per_hour"][2][22:] == [2, 1]
    assert known["week"]["jobs_per_hour"][3][:3] == [0, 0, 1]
    assert known["arrivals"]["by_hour_of_day"][22:] == [2, 1]


def test_repeated_hour_counts_half() -> None:
    trace = Trace.from_columns(
        name="weeks", submit_s=[0, 7 * DAY, 7 * DAY + 60], duration_s=[HOUR, 0, 0], num_gpus=[8, 1, 1]
    )
    week = describe(trace)["week"]
    assert week["hours"][0][:2] == [2, 1]
    assert week["jobs_per_hour"][0][:2] == [1.5, 0]
    assert week["gpus_in_demand"][0][0] == pytest.approx(8 * 3600 / 3660)


@pytest.mark.parametrize("span_s", [2.0, 3 * HOUR, 9 * DAY, 150 * DAY, 4000 * DAY, 1e12])
def test_bins_cover_the_time_and_are_few(span_s: float) -> None:
    edges = WeekClock(1234.0, 1234.0 + span_s).bin_edges()
    assert edges is not None
    assert (edges[0], edges[-1]) == (1234.0, 1234.0 + span_s)
    width = np.diff(edges)
    assert len(width) <= 201
    assert (width > 0).all()
    assert width.min() * 3.01 >= width.max()


# ---- sizes and durations ----------------------------------------------------------------------------------


def test_every_number_of_gpus_has_one_class() -> None:
    labels = [label for label, _ in SIZE_CLASSES]
    gpus = np.array([0, 0.001, 0.9999999, 1, 2, 3, 4, 7, 8, 9, 16, 17, 64, 65, 5000.0])
    assert [labels[k] for k in size_class(gpus)] == [
        "CPU only", "share", "share", "1", "2-3", "2-3", "4-7", "4-7", "8", "9-16", "9-16", "17-32", "33-64",
        "over 64", "over 64",
    ]  # fmt: skip


def test_duration_curves_by_hand() -> None:
    trace = Trace.from_columns(name="t", submit_s=[0, 1, 2], duration_s=[0, 10, 1000], num_gpus=[1, 1, 2])
    curves = describe(trace)["duration_curves"]
    at = np.array(curves["at_s"])
    assert at[0] == 1
    assert at[-1] == pytest.approx(1000)
    ten = int(np.argmin(abs(at - 10)))
    assert curves["jobs_frac"][0] == pytest.approx(1 / 3)
    assert curves["jobs_frac"][ten + 1] == pytest.approx(2 / 3)
    assert curves["jobs_frac"][-1] == 1
    assert curves["gpu_time_frac"][ten + 1] == pytest.approx(10 / 2010)
    assert curves["gpu_time_frac"][-1] == 1
    assert [row["gpus"] for row in curves["sizes"]] == ["1", "2-3"]
    assert curves["sizes"][1]["jobs_frac"][-2:] == [0, 1]


# ---- users, repetition and outcomes -----------------------------------------------------------------------


def test_users_and_virtual_clusters_by_hand() -> None:
    report = describe(make_day())
    users = report["by_user"]
    assert (users["users"], users["jobs"], users["left_out"], users["jobs_max"]) == (2, 3, 1, 2)
    assert users["largest"][0] == {
        "user": "ann",
        "jobs": 2,
        "gpu_time_h": 4,
        "gpu_time_frac": pytest.approx(4 / 6),
        "p50_s": 1.5 * HOUR,
    }
    half = users["top"][-1]
    assert (half["users"], half["jobs_frac"], half["gpu_time_frac"]) == (
        1,
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )
    assert users["curve"] == {"users_frac": [0, 0.5, 1], "gpu_time_frac": [0, pytest.approx(2 / 3), 1]}
    rows = report["by_vc"]["rows"]
    assert [(row["vc"], row["jobs"], row["gpu_time_h"], row["largest_gpus"]) for row in rows] == [
        ("a", 3, 5, 1),
        ("b", 1, 2, 2),
    ]


def test_repeated_jobs_have_one_user_and_one_name() -> None:
    found = describe(make_day())["repeats"]
    assert (found["names"], found["runs_max"]) == (3, 2)
    assert found["repeated_jobs_frac"] == 0.5
    assert found["repeated_gpu_time_frac"] == pytest.approx(4 / 7)
    assert [row["names"] for row in found["runs"]] == [2, 1, 0, 0, 0]
    half = np.log(2) / 2
    assert found["ln_duration_sd"] == pytest.approx(half)
    assert found["ln_duration_sd_within"] == pytest.approx(half)


def test_name_that_determines_the_duration_leaves_no_spread() -> None:
    trace = Trace.from_columns(
        name="t",
        submit_s=[0, 1, 2, 3],
        duration_s=[10, 1000, 10, 1000],
        num_gpus=[1] * 4,
        job_name=["short", "long", "short", "long"],
    )
    found = describe(trace)["repeats"]
    assert found["with_user"] is False
    assert found["ln_duration_sd"] == pytest.approx(np.log(10))
    assert found["ln_duration_sd_within"] == pytest.approx(0)


def test_bursts_end_with_a_gap_another_vc_or_another_size() -> None:
    vc = np.array([0, 0, 1, 0, 0, 0])
    gpus = np.array([1.0, 1, 1, 1, 2, 1])
    submit = np.array([0.0, 60, 61, 120, 121, 181])
    burst = bursts(vc, gpus, submit)
    assert burst[0] == burst[1] == burst[3]
    assert len(set(burst.tolist())) == 4
    found = describe(
        Trace.from_columns(
            name="t", submit_s=submit, duration_s=np.ones(6), num_gpus=gpus, vc=[f"v{k}" for k in vc]
        )
    )["bursts"]
    assert (found["bursts"], found["jobs_max"], found["jobs_frac"]) == (4, 3, 0.5)


def test_waiting_by_hand() -> None:
    found = describe(make_day())["waiting"]
    assert (found["jobs"], found["left_out"], found["max_s"]) == (3, 1, HOUR)
    assert found["waited_frac"] == pytest.approx(1 / 3)
    assert found["over_1h_frac"] == 0
    assert [(row["gpus"], row["jobs"], row["mean_s"]) for row in found["sizes"]] == [
        ("1", 2, 0),
        ("2-3", 1, HOUR),
    ]


def test_outcomes_by_hand() -> None:
    found = describe(make_day())["outcomes"]
    assert (found["jobs"], found["left_out"]) == (3, 1)
    rows = {row["outcome"]: row for row in found["outcomes"]}
    assert rows["failed"]["gpu_time_h"] == 2
    assert rows["failed"]["gpu_time_frac"] == pytest.approx(1 / 3)
    assert rows["cancelled"]["statuses"] == ["CANCELLED by 7"]
    assert found["sizes"][0]["jobs_frac"]["failed"] == 0.5
    assert found["sizes"][1]["gpu_time_frac"]["cancelled"] == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("Pass", "completed"),
        ("Terminated", "completed"),
        ("NODE_FAIL", "failed"),
        ("TIMEOUT", "failed"),
        ("CANCELLED by 1000", "cancelled"),
        ("Killed", "cancelled"),
        ("Running", "unfinished"),
        ("sent home", "other"),
        ("  ", "other"),
    ],
)
def test_publishers_words(status: str, outcome: str) -> None:
    assert outcome_of(status) == outcome
