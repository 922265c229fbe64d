"""`rlsched whatif` on the Philly week with starts from a published simulator: FIFO, to the second."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.load import scaled_to_nodes
from rlsched.workload.trace import Trace


@pytest.fixture(scope="module")
def week(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The week as a history: `h.csv` with the published starts, and clusters of 48, 60 and 72 nodes."""
    folder, out = shared_data / "fidelity", tmp_path_factory.mktemp("week")
    trace = Trace.read(folder / "philly_week.csv.gz")
    with gzip.open(folder / "expected_fifo_60.csv.gz", "rt", encoding="utf-8", newline="") as file:
        start_s = {row["job_id"]: float(row["start_time"]) for row in csv.DictReader(file)}
    wait_s = np.array([start_s[job] for job in trace.job_id.tolist()]) - trace.submit_s
    replace(trace, extra={**trace.extra, "queue_s": wait_s}).write(out / "h.csv")
    spec = ClusterSpec.read(folder / "philly_week.cluster.toml")
    for nodes in (48, 60, 72):
        scaled_to_nodes(spec, nodes).write(out / f"c{nodes}.toml")
    return out


def whatif(week: Path, nodes: int) -> list[str]:
    return ["whatif", str(week / "h.csv"), "--cluster", str(week / f"c{nodes}.toml"), "--quiet", "--json"]


def test_fifo_is_found_to_the_second(week: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(whatif(week, 60)) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["fits"][0]
    assert (best["rule"], best["grade"], found["grade"]) == ("fifo", "A", "A")
    assert best["all"]["jobs"] == 10_650
    assert (
        best["all"]["recorded_mean_s"]
        == best["all"]["replayed_mean_s"]
        == pytest.approx(46_321 - 7_829, abs=1)
    )
    for key in ("mean_frac", "by_size_frac", "by_partition_frac", "by_day_frac", "by_job_frac"):
        assert best["all"][key] == best["last"][key] == 0.0
    assert [fit["grade"] for fit in found["fits"][1:]] == ["D"]
    assert found["best"] == ""  # two days in the last fifth: no interval, and no claim
    assert found["verdict"].startswith("no result: the last fifth has submissions on only 2 days")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (48, "philly_week has 384 GPUs, but up to 480 were busy at once"),
        (72, "never more than 480 of 576 GPUs were busy: the cluster may have fewer GPUs than"),
    ],
)
def test_wrong_capacity_is_refused(
    week: Path, nodes: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(whatif(week, nodes)) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
