"""Metrics of hand-made schedules with known results."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.build import rejected_lines, rejected_reasons
from rlsched_agents.evaluate.jobs_out import Places, file_stem, ranges, seconds, write_jobs
from rlsched_agents.evaluate.metrics import bounded_slowdown, mean_over_seeds, quantile, schedule_metrics
from rlsched_agents.evaluate.modelled import HourMetrics
from rlsched_agents.evaluate.pairs import Ratio, compare, geometric_mean, ratio_of_sums
from rlsched_agents.evaluate.run import distinct, replay_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow, scaled_cluster, window_of
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.sim.job_table import JobTable

NAN = float("nan")


def make_trace() -> Trace:
    """Five jobs: two of 1 GPU, two of 2 GPUs, one that can never run."""
    return Trace.from_columns(
        name="five",
        submit_s=[0.0, 10.0, 20.0, 30.0, 100.0],
        duration_s=[50.0, 40.0, 30.0, 20.0, 10.0],
        num_gpus=[1.0, 2.0, 1.0, 2.0, 64.0],
        vc=["a", "b", "a", "", "b"],
        job_id=["p", "q", "r", "s", "t"],
    )


def make_table(**changes: object) -> JobTable:
    """p 0-50, q 15-55, r 60-90, s 90-110, t rejected."""
    values: dict[str, object] = {
        "trace": make_trace(),
        "start_s": np.array([0.0, 15.0, 60.0, 90.0, NAN]),
        "end_s": np.array([50.0, 55.0, 90.0, 110.0, NAN]),
        "rejected": np.array([False, False, False, False, True]),
        "spec": ClusterSpec.uniform(1),
        "gpu_node": np.zeros(8, dtype=np.int32),
        "reject_reason": np.array(["", "", "", "", "too large"]),
        "gpus": [(0,), (1, 2), (0,), (3, 4), ()],
        "decisions": 7,
        "decision_us": np.array([100.0, 200.0]),
        "by_source": {"rule": 7},
    }
    return JobTable(**(values | changes))  # type: ignore[arg-type]


def test_headline_numbers() -> None:
    one = schedule_metrics(make_table(), num_gpus=8, wall_s=1.5)
    assert (one.jobs, one.rejected, one.unfinished) == (5, 1, 0)
    assert one.jct_mean_s == pytest.approx((50 + 45 + 70 + 80) / 4)
    assert one.jct_p50_s == pytest.approx(60.0)  # between 50 and 70
    assert one.jct_p99_s == pytest.approx(70 + 0.97 * 10)
    assert one.jct_p999_s == pytest.approx(70 + 0.997 * 10)
    assert one.queue_mean_s == pytest.approx((0 + 5 + 40 + 60) / 4)
    assert one.queue_p50_s == pytest.approx(22.5)
    assert one.queue_p99_s == pytest.approx(40 + 0.97 * 20)
    assert one.queue_p999_s == pytest.approx(40 + 0.997 * 20)
    assert one.queue_max_s == 60.0
    assert one.makespan_s == 110.0
    assert one.energy_kwh is None
    assert one.preemptions == 0
    assert one.decisions == 7
    assert one.decision_p99_us == pytest.approx(199.0)
    assert one.decision_p50_us == pytest.approx(150.0)
    assert one.jct_p90_s == pytest.approx(70 + 0.7 * 10)
    assert one.queue_p90_s == pytest.approx(40 + 0.7 * 20)
    assert one.lost_gpu_s == 0.0
    assert one.gpu_used_frac is None
    assert one.wall_s == 1.5
    assert one.by_source == {"rule": 7}


def test_bounded_slowdown_counts_short_jobs_as_ten_seconds() -> None:
    # JCT 50, 45, 70, 80 s of durations 50, 40, 30, 20 s.
    one = schedule_metrics(make_table(), num_gpus=8)
    assert one.bounded_slowdown_mean == pytest.approx((1 + 45 / 40 + 70 / 30 + 4) / 4)
    assert one.bounded_slowdown_p99 == pytest.approx(70 / 30 + 0.97 * (4 - 70 / 30))
    assert one.by_vc["-"].bounded_slowdown_mean == pytest.approx(4.0)
    brief = replace(make_trace(), duration_s=np.array([0.0, 8.0, 5.0, 10.0, 1.0]))
    table = make_table(
        trace=brief,
        start_s=np.array([0.0, 11.0, 60.0, 90.0, NAN]),
        end_s=np.array([0.0, 19.0, 65.0, 100.0, NAN]),
    )
    np.testing.assert_allclose(bounded_slowdown(table), [1, 1, 4.5, 7, NAN])


def test_utilisation_runs_from_first_to_last_submission() -> None:
    # Submissions 0 to 100 s: p 50 x 1, q 40 x 2, r 30 x 1, s 10 x 2 of its 20 s.
    one = schedule_metrics(make_table(), num_gpus=8)
    assert one.gpu_utilisation_frac == pytest.approx((50 + 80 + 30 + 20) / (8 * 100))


def test_utilisation_of_a_window_counts_earlier_jobs() -> None:
    measured = np.array([False, False, True, True, False])  # 20 to 30 s
    one = schedule_metrics(make_table(), num_gpus=8, measured=measured)
    assert one.gpu_utilisation_frac == pytest.approx((10 * 1 + 10 * 2) / (8 * 10))
    assert one.jobs == 2
    assert one.queue_mean_s == pytest.approx(50.0)
    assert one.makespan_s == pytest.approx(90.0)


def test_running_jobs_occupy_their_gpus_and_are_unfinished() -> None:
    table = make_table(end_s=np.array([50.0, NAN, 90.0, 110.0, NAN]))
    one = schedule_metrics(table, num_gpus=8)
    assert (one.jobs, one.rejected, one.unfinished) == (5, 1, 1)
    assert one.jct_mean_s == pytest.approx((50 + 70 + 80) / 3)
    assert one.gpu_utilisation_frac == pytest.approx((50 + 2 * 85 + 30 + 20) / (8 * 100))


def test_breakdowns_add_up() -> None:
    one = schedule_metrics(make_table(), num_gpus=8)
    assert list(one.by_gpus) == ["1", "2", "64"]
    assert one.by_gpus["2"].queue_mean_s == pytest.approx(32.5)
    assert one.by_gpus["2"].queue_p50_s == pytest.approx(32.5)
    assert one.by_gpus["1"].jct_mean_s == pytest.approx(60.0)
    assert one.by_gpus["64"].jct_mean_s is None
    assert one.by_gpus["64"].rejected == 1
    assert {vc: group.jobs for vc, group in one.by_vc.items()} == {"-": 1, "a": 2, "b": 2}
    assert sum(group.jobs for group in one.by_gpus.values()) == one.jobs
    two = one.by_gpus["2"]  # waited 5 and 60 s, JCT 45 and 80 s
    assert (two.queue_p90_s, two.queue_p999_s, two.queue_max_s) == pytest.approx((54.5, 59.945, 60.0))
    assert (two.jct_p50_s, two.jct_p90_s, two.jct_p999_s) == pytest.approx((62.5, 76.5, 79.965))
    assert one.by_vc["a"].queue_max_s == 40.0
    assert one.by_gpus["64"].queue_max_s is None


def test_without_ended_jobs_metrics_are_none() -> None:
    nothing = np.full(5, NAN)
    one = schedule_metrics(make_table(start_s=nothing, end_s=nothing, decision_us=np.empty(0)), num_gpus=8)
    assert one.unfinished == 4
    assert one.jct_mean_s is None
    assert one.queue_max_s is None
    assert one.makespan_s is None
    assert one.decision_p99_us is None
    assert one.decision_p50_us is None
    assert one.bounded_slowdown_mean is None
    assert one.gpu_utilisation_frac == 0.0


def test_one_instant_has_no_utilisation() -> None:
    measured = np.array([True, False, False, False, False])
    assert schedule_metrics(make_table(), num_gpus=8, measured=measured).gpu_utilisation_frac is None


def test_quantiles_interpolate() -> None:
    assert quantile(np.arange(1001.0), 99.9) == pytest.approx(999.0)
    assert quantile(np.array([0.0, 10.0]), 99) == pytest.approx(9.9)
    assert quantile(np.empty(0), 50) is None


def test_mean_over_seeds() -> None:
    late = make_table(
        start_s=np.array([0.0, 15.0, 60.0, 94.0, NAN]),
        by_source={"rule": 5, "guard": 2},
        decision_us=np.empty(0),
    )
    both = mean_over_seeds([schedule_metrics(make_table(), num_gpus=8), schedule_metrics(late, num_gpus=8)])
    assert both.queue_mean_s == pytest.approx((105 / 4 + 109 / 4) / 2)
    assert both.by_gpus["2"].queue_mean_s == pytest.approx((65 / 2 + 69 / 2) / 2)
    assert both.jobs == 5
    assert both.decision_p99_us is None
    assert both.by_source == {"rule": 6, "guard": 1}
    assert both.over_time is not None
    # Steps of 60 s: p and q in the first; r and 10 or 6 s of s in the remaining 40 s.
    assert both.over_time.gpus_allocated == pytest.approx([(50 + 80) / 60, (30 + 2 * 8) / 40])


def test_mean_over_seeds_of_replays_that_end_at_different_times() -> None:
    """An hour after the end of a replay counts as 0, so that the means add up to the mean of the totals."""
    hours = [
        HourMetrics(from_s=3_600.0, energy_kwh=kwh, cost=kwh, carbon_kg=None) for kwh in ([2.0, 4.0], [6.0])
    ]
    one, other = (
        msgspec.structs.replace(schedule_metrics(make_table(), num_gpus=8), by_hour=by_hour)
        for by_hour in hours
    )
    assert mean_over_seeds([one, other]).by_hour == HourMetrics(
        from_s=3_600.0, energy_kwh=[4.0, 2.0], cost=[4.0, 2.0], carbon_kg=None
    )


def test_rejected_jobs_are_counted_and_named() -> None:
    everyone = np.ones(5, dtype=np.bool_)
    assert rejected_reasons(make_table(), everyone) == {"too large": 1}
    assert rejected_lines(make_table(), everyone) == ["1 rejected: too large (t)"]


def test_ratio_and_interval_of_equal_halves() -> None:
    same = ratio_of_sums(np.full(30, 5.0), np.full(30, 10.0))
    assert same is not None
    assert (same.ratio, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio_of_sums(np.ones(3), np.zeros(3)) is None


def test_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        theirs = rng.uniform(5, 15, 60)
        interval = ratio_of_sums(0.8 * theirs + rng.normal(0, 1, 60), theirs, draws=400, seed=trial)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 0.8 <= interval.high
    assert 175 <= hits <= 200  # 190 expected


def test_geometric_mean() -> None:
    found = geometric_mean(np.array([0.5, 2.0] * 5))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.ratio == pytest.approx(1.0)
    # Logs of +-ln 2: the mean of ten has a standard deviation of ln 2 / sqrt(10), 0.22.
    assert np.log(found.high) == pytest.approx(1.96 * np.log(2) / np.sqrt(10), rel=0.15)
    assert np.log(found.low) == pytest.approx(-1.96 * np.log(2) / np.sqrt(10), rel=0.15)
    assert geometric_mean(np.empty(0)) is None


def test_no_interval_from_fewer_than_ten() -> None:
    nine, ten = np.linspace(0.5, 2.0, 9), np.linspace(0.5, 2.0, 10)
    for few, enough in (
        (geometric_mean(nine), geometric_mean(ten)),
        (ratio_of_sums(nine, np.ones(9)), ratio_of_sums(ten, np.ones(10))),
    ):
        assert few is not None
        assert enough is not None
        assert (few.low, few.high) == (None, None)
        assert enough.low is not None
        assert enough.high is not None
        assert enough.low < enough.ratio < enough.high
    assert str(Ratio(0.8125, 0.75, 0.876)) == "0.812 [0.75, 0.88]"
    assert str(Ratio(0.8125, None, None)) == "0.812"


@pytest.mark.parametrize(("days", "interval"), [(9, False), (10, True)])
def test_blocks_are_days_of_submissions(days: int, interval: bool) -> None:
    # Three jobs on every other day of the trace: days with submissions count, not the time between.
    submit_s = np.array([day * 2 * 86400.0 + hour * 3600.0 for day in range(days) for hour in (0, 1, 23)])
    ones = np.ones(len(submit_s))
    trace = Trace.from_columns(name="days", submit_s=submit_s, duration_s=60 * ones, num_gpus=ones)

    def waiting(wait_s: np.ndarray) -> JobTable:
        return make_table(
            trace=trace,
            start_s=submit_s + wait_s,
            end_s=submit_s + wait_s + 60,
            rejected=np.zeros(len(ones), dtype=np.bool_),
            reject_reason=np.full(len(ones), ""),
            gpus=[(0,)] * len(ones),
        )

    found = compare([waiting(np.arange(len(ones)))], [waiting(10 * ones)], np.ones(len(ones), dtype=np.bool_))
    assert found.blocks == days
    assert found.queue_mean_ratio is not None
    assert found.queue_mean_ratio.ratio == pytest.approx((len(ones) - 1) / 2 / 10)
    assert (found.queue_mean_ratio.low is not None) == interval
    assert (found.queue_mean_ratio.high is not None) == interval


def test_comparison_counts_wins_and_leaves_out_unfinished_jobs() -> None:
    slower = make_table(
        start_s=np.array([10.0, 15.0, 50.0, 90.0, NAN]), end_s=np.array([60.0, 55.0, 80.0, NAN, NAN])
    )
    found = compare([slower], [make_table()], np.ones(5, dtype=np.bool_))
    assert found.jobs == 3
    assert found.wins_frac == pytest.approx(1 / 3)
    assert found.losses_frac == pytest.approx(1 / 3)
    assert found.queue_mean_ratio is not None
    assert found.queue_mean_ratio.ratio == pytest.approx((10 + 5 + 30) / (0 + 5 + 40))
    assert found.jct_mean_ratio is not None
    assert found.jct_mean_ratio.ratio == pytest.approx((60 + 45 + 60) / (50 + 45 + 70))


def test_slack_is_compared_with_the_baseline() -> None:
    """Of three jobs with slack, one ends 11 minutes beyond it; the job without slack takes twice as long."""
    slack_s = np.array([0.0, 60.0, 60.0, 3600.0, 0.0])
    trace = replace(make_trace(), extra={"slack_s": slack_s})
    start_s = trace.submit_s + 5.0
    base_s = start_s + 100.0
    later_s = base_s + np.array([105.0, 60.0 + 660.0, 60.0, 4100.0, NAN])
    ours, theirs = (make_table(start_s=start_s, end_s=end_s, trace=trace) for end_s in (later_s, base_s))
    found = compare([ours], [theirs], np.ones(5, dtype=np.bool_))
    assert found.late_frac == pytest.approx(1 / 3)
    assert found.urgent_jct_ratio is not None
    assert found.urgent_jct_ratio.ratio == pytest.approx(2.0)
    blind = compare([make_table()], [make_table()], np.ones(5, dtype=np.bool_))
    assert (blind.late_frac, blind.urgent_jct_ratio) == (None, None)


def test_windows() -> None:
    trace = make_trace()
    assert window_of(trace, None, None).measured(trace).all()
    assert window_of(trace, 10.0, 30.0).measured(trace).tolist() == [False, True, True, False, False]
    assert window_of(trace, 10.0, 30.0).replay_from_s == 0.0
    week = 7 * 86400.0
    assert MeasuredWindow(week + 5.0, np.inf).replay_from_s == 5.0


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [(50.0, 50.0, "since below"), (200.0, None, "no job is submitted"), (NAN, 5.0, "since below")],
)
def test_empty_windows_are_refused(since: float, until: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        window_of(make_trace(), since, until)


def test_nodes_and_load_exclude_each_other() -> None:
    with pytest.raises(InputError, match="got both"):
        scaled_cluster(make_trace(), ClusterSpec.uniform(2), MeasuredWindow(), nodes=1, load=0.5)
    assert (
        scaled_cluster(make_trace(), ClusterSpec.uniform(2), MeasuredWindow(), nodes=3, load=None).num_nodes
        == 3
    )


def test_cells_of_gangs() -> None:
    places = Places(ClusterSpec(name="c", nodes=(NodeGroup(count=2, gpus=4), NodeGroup(count=2, gpus=8))))
    assert places.cells((1,)) == ("n0", "1")
    assert places.cells((4, 5, *range(8, 16))) == ("n1;n2", "0,1;0-7")
    assert places.cells((23, 16, 18)) == ("n3", "0,2,7")
    assert ranges([0, 1, 2, 5, 6]) == "0-2,5,6"


def test_names_and_seconds() -> None:
    assert file_stem("ppo:runs/try.zip") == "ppo_runs_try.zip"
    assert [seconds(value) for value in (5.0, 0.1, NAN, 1e9 + 0.5)] == ["5", "0.1", "", "1000000000.5"]


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_job_files(tmp_path: Path) -> None:
    spec = ClusterSpec.uniform(2, 4)
    table = make_table(end_s=np.array([50.0, 55.5, 90.0, NAN, NAN]))
    write_jobs(table, spec, np.array([False, True, True, True, True]), tmp_path / "new", "fifo")
    rows = rows_of(tmp_path / "new" / "fifo.csv")
    header = "job_id,submit_time,start_time,end_time,node,gpus,share,sm_clock_frac,energy_j,cost,carbon_kg"
    assert ",".join(rows[0]) == header
    assert rows[1:] == [
        ["q", "10", "15", "55.5", "n0", "1,2", "1", "1", "", "", ""],
        ["r", "20", "60", "90", "n0", "0", "1", "1", "", "", ""],
        ["s", "30", "90", "", "n0;n1", "3;0", "1", "1", "", "", ""],
        ["t", "100", "", "", "", "", "", "", "", "", ""],
    ]
    segments = rows_of(tmp_path / "new" / "fifo.segments.csv")
    assert segments[1] == ["q", "1", "15", "55.5", "n0", "1,2", "1", "1", "", "ended"]
    assert segments[3] == ["s", "1", "90", "", "n0;n1", "3;0", "1", "1", "", "running"]
    assert len(segments) == 4
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write job files"):
        write_jobs(table, spec, np.ones(5, dtype=np.bool_), tmp_path / "file", "fifo")


def test_only_policies_that_differ_by_seed_run_more_than_once() -> None:
    trace = make_trace()
    predictions = PredictedTimes(trace.duration_s, np.zeros(len(trace)))
    policies = distinct([Policy("fifo"), Policy("random"), Policy("fifo")])
    tasks = replay_tasks(trace, ClusterSpec.uniform(1), MeasuredWindow(), predictions, policies, [4, 5])
    assert [(task.policy.name, task.seed) for task in tasks] == [("fifo", 4), ("random", 4), ("random", 5)]
