"""The Standard Workload Format, version 2.2: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.errors import InputError
from rlsched.workload.formats.account import AGAIN
from rlsched_envs.sim.engine import Engine
from tests.support.sim.samples import WHOLE, convert, convert_text, noted, skipped

SWF = WHOLE[7]


def test_fields_and_blanks_for_minus_one() -> None:
    trace = convert(SWF).trace
    assert trace.job_id.tolist() == ["1", "2", "3", "5"]
    assert trace.submit_s.tolist() == [0, 50, 60, 80]
    assert trace.duration_s.tolist() == [100, 200, 300, 12.5]
    assert trace.status.tolist() == ["completed", "failed", "completed", "cancelled"]
    assert trace.user.tolist() == ["5", "6", "6", "7"]
    assert trace.job_name.tolist() == ["1", "", "", ""]
    assert trace.vc.tolist() == ["0", "", "", ""]
    assert trace.time_limit_s.tolist()[0] == 3600
    assert np.isnan(trace.time_limit_s[1])
    assert np.isnan(trace.extra["queue_s"][3])
    assert trace.extra["memory_mib"].tolist()[0] == 4 * 2048 / 1024
    assert trace.extra["depends_on"].tolist() == ["", "", "1", ""]
    assert trace.extra["x_think_time_s"].tolist() == ["", "", "60", ""]


def test_processors_are_cores_or_on_request_gpus() -> None:
    cores, gpus = convert(SWF).trace, convert(SWF, processors="gpus").trace
    assert (cores.num_gpus.tolist(), cores.num_cpus.tolist()) == ([0, 0, 0, 0], [4, 8, 16, 2])
    assert gpus.num_gpus.tolist() == [4, 8, 16, 2]
    assert np.isnan(gpus.num_cpus).all()


def test_swapped_out_job_counts_once() -> None:
    """Its line of code 0 or 1 sums up those with codes 2, 3 and 4."""
    assert skipped(convert(SWF).accounts[0]) == {
        "partial record of a job that another line sums up": [13, 14],
        "cancelled before it started": [15],
        "run time unknown": [17],
        "processors unknown": [18],
    }


def test_comments_are_no_rows_and_contain_the_start_of_the_log() -> None:
    assert convert(SWF).origin == "second 0 of the log, 2001-09-09 01:46:40 UTC"


def test_header_gives_the_nodes_if_processors_are_gpus() -> None:
    spec = convert(SWF, processors="gpus", cluster_name="log").cluster
    assert spec is not None
    assert [(group.count, group.gpus) for group in spec.nodes] == [(4, 8)]
    with pytest.raises(InputError, match="the format does not describe GPUs; give --processors gpus"):
        convert(SWF, cluster_name="log")


@pytest.mark.parametrize(
    "header", ["", "; MaxNodes: 3\n; MaxProcs: 32\n", "; MaxNodes: 1\n; MaxProcs: 128\n"]
)
def test_header_without_usable_nodes(header: str, tmp_path: Path) -> None:
    line = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    with pytest.raises(InputError, match="expected 1 to 64 processors per node, from the comments"):
        convert_text("swf", tmp_path / "l.swf", header + line, processors="gpus", cluster_name="c")


def test_second_line_of_one_number_is_not_a_second_job(tmp_path: Path) -> None:
    line = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    account = convert_text("swf", tmp_path / "l.swf", line * 3 + line.replace("100", "99")).accounts[0]
    assert skipped(account) == {AGAIN: [2, 3], "job id of an earlier row": [4]}


def test_requested_time_is_a_limit_only_where_it_was_kept(tmp_path: Path) -> None:
    """0 and -1 are no limit, and a job that ran longer than its requested time was not bound by it."""
    lines = [
        f"{job} 0 10 {run_s} 4 -1 -1 4 {asked_s} 2048 1 5 2 1 1 0 -1 -1"
        for job, run_s, asked_s in ((1, 100, 3600), (2, 100, 0), (3, 100, -1), (4, 7200, 3600), (5, 60, 60))
    ]
    conversion = convert_text("swf", tmp_path / "l.swf", "\n".join(lines))
    trace = conversion.trace
    assert trace.duration_s.tolist() == [100, 100, 100, 7200, 60]
    np.testing.assert_array_equal(trace.time_limit_s, [3600, np.nan, np.nan, np.nan, 60])
    assert trace.extra["x_time_limit_s"].tolist() == ["", "", "", "3600", ""]
    (remark,) = noted(conversion.accounts[0]).items()
    assert remark == (
        "ran longer than its time limit, which is in x_time_limit_s; time_limit is blank",
        [4],
    )


def test_replay_runs_as_long_as_the_log(tmp_path: Path) -> None:
    lines = [
        f"{job} 0 10 {run_s} 1 -1 -1 1 {asked_s} -1 1 5 2 1 1 0 -1 -1"
        for job, run_s, asked_s in ((1, 7200, 3600), (2, 600, 0), (3, 600, -1))
    ]
    trace = convert_text("swf", tmp_path / "l.swf", "\n".join(lines), processors="gpus").trace
    spec = ClusterSpec(name="c", nodes=(NodeGroup(count=1, gpus=4, gpu_type="generic"),))
    table = Engine(trace, spec, order=Policy("fifo").rule.order).run(RuleScheduler(Policy("fifo")))
    assert (table.end_s - table.start_s).tolist() == [7200, 600, 600]


@pytest.mark.parametrize(("old", "new"), [("1 0", "-1 0"), ("1 0", "1.5 0"), (" 1 5", " 0.5 5")])
def test_numbers_of_jobs_and_states_are_integers(old: str, new: str, tmp_path: Path) -> None:
    good = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    account = convert_text("swf", tmp_path / "l.swf", good.replace(old, new, 1) + good).accounts[0]
    ((reason, tally),) = account.skipped.items()
    assert reason.startswith("malformed: ")
    assert tally.lines == [1]


def test_origin_is_read_from_the_header(tmp_path: Path) -> None:
    assert convert(SWF).trace.origin == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    line = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    assert convert_text("swf", tmp_path / "l.swf", line).trace.origin is None
