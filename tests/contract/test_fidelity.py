"""Number for number against a published simulator: Lucid's (Hu et al., ASPLOS'23) on a week of Philly."""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable

pytestmark = pytest.mark.shared_data

JOBS = 10_650


@cache
def week(folder: Path) -> tuple[Trace, ClusterSpec]:
    return Trace.read(folder / "philly_week.csv.gz"), ClusterSpec.read(folder / "philly_week.cluster.toml")


def replay(folder: Path, name: str) -> JobTable:
    trace, spec = week(folder)
    policy = Policy(name)
    engine = Engine(trace, spec, order=policy.rule.order, oracle=policy.oracle)
    return engine.run_rule(policy.rule)


@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf"])
def test_every_start_and_end(shared_data: Path, name: str) -> None:
    folder = shared_data / "fidelity"
    table = replay(folder, name)
    with gzip.open(folder / f"expected_{name}_60.csv.gz", "rt", encoding="utf-8", newline="") as file:
        expected = {
            row["job_id"]: (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(file)
        }
    assert len(expected) == len(table.trace) == JOBS
    starts, ends = np.array([expected[job] for job in table.trace.job_id.tolist()]).T
    np.testing.assert_array_equal(table.start_s, starts)
    np.testing.assert_array_equal(table.end_s, ends)
    assert table.decisions == JOBS


@pytest.mark.parametrize(
    ("name", "mean_s"), [("fifo-backfill", 14_593), ("sjf-backfill", 10_187), ("qssf-backfill", 10_491)]
)
def test_means_where_the_queue_does_not_block(shared_data: Path, name: str, mean_s: float) -> None:
    table = replay(shared_data / "fidelity", name)
    assert (table.end_s - table.trace.submit_s).mean() == pytest.approx(mean_s, abs=1.0)
