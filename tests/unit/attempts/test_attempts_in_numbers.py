"""Metrics and job files of schedules with several attempts per job, solved by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.arrays import NODE_DOWN
from rlsched.cluster.spec import ClusterSpec
from rlsched_agents.evaluate.jobs_out import write_jobs
from rlsched_agents.evaluate.metrics import schedule_metrics
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.node_events import NodeEvent
from tests.support.sim.play import Scripted, run, trace_of


def preempted() -> JobTable:
    """On 2 GPUs: a 0-30, b 30-50, a again 50-160 (40 s of restart cost), c 200-210."""
    trace = trace_of([(0, 100, 2), (10, 20, 2), (200, 10, 1)])
    return run(trace, Scripted({30.0: [0]}, {30.0: [1]}), gpus=2)


def test_every_attempt_counts_while_it_runs() -> None:
    one = schedule_metrics(preempted(), num_gpus=2)
    assert one.jct_mean_s == pytest.approx((160 + 40 + 10) / 3)
    assert one.queue_mean_s == pytest.approx(20 / 3)
    assert one.gpu_utilisation_frac == pytest.approx(2 * (30 + 20 + 110) / (2 * 200))
    assert one.over_time is not None
    assert one.over_time.gpus_allocated == pytest.approx([2, 2, 2 * 40 / 60, 0])
    assert one.fragmentation_frac == 0.0
    assert (one.preemptions, one.lost_gpu_s) == (1, 80.0)
    assert one.by_end == {"completed": 3, "timeout": 0, "failed": 0, "cancelled": 0}


def test_only_measured_jobs_count() -> None:
    table = preempted()
    assert table.log is not None
    later = schedule_metrics(table, 2, np.array([False, True, True]))
    assert (later.preemptions, later.lost_gpu_s) == (0, 0.0)
    assert later.gpu_utilisation_frac == pytest.approx(2 * (20 + 20 + 110) / (2 * 190))
    first = table.first_rows(1)
    assert first.log is not None
    assert first.log.start_s.tolist() == [0, 50]
    assert [first.log.gpus(k) for k in range(2)] == [(0, 1), (0, 1)]


def test_ends_of_jobs_and_lost_work() -> None:
    trace = trace_of(
        [(0, 100, 1), (0, 100, 2), (0, 100, 1), (0, 100, 4)],
        time_limit_s=[60.0, np.nan, np.nan, np.nan],
        fail_after_s=["", "30;50", "", ""],
        restart_s=[5.0] * 4,
    )
    rules = RunRules(max_retries=1, node_events=(NodeEvent(20.0, 0, NODE_DOWN),))
    table = run(trace, "fifo-backfill", nodes=2, gpus=4, rules=rules)
    # a, b and c are on n0 when it goes down: 20 s of each are lost, and they run on n1 from 100 on
    assert table.start_s.tolist() == [0, 0, 0, 0]
    one = schedule_metrics(table, num_gpus=8)
    assert table.end_s.tolist() == [160, 160, 205, 100]
    assert one.by_end == {"completed": 2, "timeout": 1, "failed": 1, "cancelled": 0}
    # b fails after 20 + 10 s, and finally 50 s later
    assert one.lost_gpu_s == (20 + 5) * 1 + (20 + 10 + 50) * 2 + (20 + 5) * 1
    assert one.preemptions == 0


def test_files_have_a_row_for_every_attempt(tmp_path: Path) -> None:
    spec = ClusterSpec.uniform(1, 2)
    write_jobs(preempted(), spec, np.array([True, False, True]), tmp_path, "x")
    with (tmp_path / "x.segments.csv").open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ["a", "1", "0", "30", "n0", "0,1", "1", "1", "", "preempted"],
        ["a", "2", "50", "160", "n0", "0,1", "1", "1", "", "ended"],
        ["c", "1", "200", "210", "n0", "0", "1", "1", "", "ended"],
    ]
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ["a", "0", "0", "160", "n0", "0,1", "1", "1", "", "", ""],
        ["c", "200", "200", "210", "n0", "0", "1", "1", "", "", ""],
    ]
