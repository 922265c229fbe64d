"""The Standard Workload Format, version 2.2: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from tests.unit.formats.samples import WHOLE, convert, convert_text, skipped

SWF = WHOLE[7]


def test_fields_and_what_minus_one_leaves_blank() -> None:
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


def test_processors_are_cores_or_if_one_says_so_gpus() -> None:
    cores, gpus = convert(SWF).trace, convert(SWF, processors="gpus").trace
    assert (cores.num_gpus.tolist(), cores.num_cpus.tolist()) == ([0, 0, 0, 0], [4, 8, 16, 2])
    assert gpus.num_gpus.tolist() == [4, 8, 16, 2]
    assert np.isnan(gpus.num_cpus).all()


def test_a_job_that_was_swapped_out_counts_once() -> None:
    """Its line of code 0 or 1 sums up those of codes 2, 3 and 4."""
    assert skipped(convert(SWF).accounts[0]) == {
        "part of a job that another line sums up": [13, 14],
        "cancelled before it started": [15],
        "run time unknown": [17],
        "processors unknown": [18],
    }


def test_comments_are_no_rows_and_say_when_the_log_starts() -> None:
    assert convert(SWF).origin == "second 0 of the log, 2001-09-09 01:46:40 UTC"


def test_the_header_gives_the_nodes_if_processors_are_gpus() -> None:
    spec = convert(SWF, processors="gpus", cluster_name="log").cluster
    assert spec is not None
    assert [(group.count, group.gpus) for group in spec.nodes] == [(4, 8)]
    with pytest.raises(InputError, match="the format knows no GPUs; give --processors gpus"):
        convert(SWF, cluster_name="log")


@pytest.mark.parametrize(
    "header", ["", "; MaxNodes: 3\n; MaxProcs: 32\n", "; MaxNodes: 1\n; MaxProcs: 128\n"]
)
def test_a_header_that_does_not_make_nodes(header: str, tmp_path: Path) -> None:
    line = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    with pytest.raises(
        InputError, match="expected comments MaxNodes and MaxProcs that make nodes of 1 to 64"
    ):
        convert_text("swf", tmp_path / "l.swf", header + line, processors="gpus", cluster_name="c")


def test_a_second_line_of_one_number_is_not_a_second_job(tmp_path: Path) -> None:
    line = "1 0 10 100 4 -1 -1 4 3600 2048 1 5 2 1 1 0 -1 -1\n"
    account = convert_text("swf", tmp_path / "l.swf", line * 3).accounts[0]
    assert skipped(account) == {"job id of an earlier row": [2, 3]}
