"""Alibaba PAI's tables, which have no header line.

Columns follow alibaba/clusterdata, cluster-trace-gpu-v2020/data/*.header, commits
4453045c01f58e2241e963293d2e707a5f64a0f1 (job, instance) and 518b6250441986aca19199944065fffd1f2e79c9 (the
others); percent, GB and states its README.md, commit 02a1be14f86d8221b53d3cbbde2c2b60ea68b95a; that 0 stands
for an unknown time its analysis/utils.py, commit 069956518c878a97241fcb5cb856efa412982c53.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.workload.formats.frame import Request
from rlsched.workload.formats.registry import convert_original
from tests.support.sim.samples import DAMAGED, SAMPLES, WHOLE, convert, convert_text, noted, skipped

PAI, DAMAGED_PAI = WHOLE[2], DAMAGED[2]


def test_plans_are_percent_of_an_instance_and_add_up_for_a_job() -> None:
    """Job 2: three workers of half a GPU and 8 cores, two parameter servers and an evaluator of 4 cores."""
    conversion = convert(PAI)
    trace = conversion.trace
    assert trace.job_id.tolist() == ["job0001", "job0002", "job0003"]
    assert trace.num_gpus.tolist() == [0.5, 2, 4]
    assert trace.extra["x_plan_gpu"].tolist() == ["0.5", "1.5", "4"]
    assert trace.num_cpus.tolist() == [6, 3 * 8 + 2 * 4 + 4, 12]
    assert trace.extra["memory_mib"].tolist() == [30_000, (3 * 32 + 2 * 16 + 16) * 1024, 60 * 1024]
    assert noted(conversion.accounts[0]) == {"GPUs rounded up to a whole number": [2]}


def test_job_runs_from_its_first_instance_to_its_last() -> None:
    trace = convert(PAI).trace
    assert trace.duration_s.tolist() == [570, 7200, 70]
    assert trace.extra["queue_s"].tolist() == [20, 100, 30]
    assert trace.submit_s.tolist() == [0, 100, 200]


def test_without_instances_and_tags_only_tasks_are_used(tmp_path: Path) -> None:
    for name in ("pai_job_table.csv", "pai_task_table.csv"):
        shutil.copy(SAMPLES / "pai" / name, tmp_path)
    conversion = convert_original("pai", Request(tmp_path))
    assert conversion.trace.duration_s.tolist() == [590, 7280, 100]
    assert conversion.trace.extra["queue_s"].tolist() == [10, 20, 0]
    assert "x_workload" not in conversion.trace.extra
    assert set(conversion.trace.gpu_type.tolist()) == {""}
    assert [account.path.name for account in conversion.accounts] == [
        "pai_job_table.csv",
        "pai_task_table.csv",
    ]


def test_gpu_type_is_the_requested_one() -> None:
    """gpu_type of a task is the allocated type; gpu_type_spec of a tag is the requested type, if any."""
    trace = convert(PAI).trace
    assert trace.gpu_type.tolist() == ["", "P100", ""]
    assert trace.extra["x_gpu_type"].tolist() == ["MISC", "P100", "V100"]
    assert trace.job_name.tolist() == ["group-a", "group-b", ""]
    assert trace.extra["x_workload"].tolist() == ["nmt", "", ""]


def test_jobs_that_never_ran_or_never_ended() -> None:
    """Job 6 has a task whose start is 0, which stands for unknown; jobs 5 and 7 have no task."""
    accounts = {account.path.name: account for account in convert(PAI).accounts}
    assert skipped(accounts["pai_job_table.csv"]) == {
        "still running": [4],
        "no task in the task table": [5, 7],
        "never started": [6],
        "no end recorded": [8],
    }
    assert skipped(accounts["pai_task_table.csv"]) == {"row of a job that the job table lacks": [9]}
    assert skipped(accounts["pai_instance_table.csv"]) == {"row of a job that the job table lacks": [9]}


def test_damaged_lines_are_reported_by_table() -> None:
    accounts = {account.path.name: account for account in convert(DAMAGED_PAI).accounts}
    assert skipped(accounts["pai_job_table.csv"]) == {
        "malformed: number of fields": [2],
        "malformed: start_time": [3],
        "malformed: end before start": [5],
    }
    assert skipped(accounts["pai_task_table.csv"]) == {"malformed: inst_num": [2], "malformed: plan_gpu": [4]}
    assert skipped(accounts["pai_instance_table.csv"]) == {"malformed: other bytes than UTF-8": [2]}


def test_job_table_without_the_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"expected pai_task_table next to pai_job_table\.csv, got no such file"
    ):
        convert_text("pai", tmp_path / "pai_job_table.csv", "j,i,u,Terminated,1.0,2.0\n")


def test_machines() -> None:
    spec = convert(PAI, cluster_name="pai").cluster
    assert spec is not None
    assert [(group.count, group.gpus, group.gpu_type, group.cpus) for group in spec.nodes] == [
        (1, 0, "none", 64),
        (1, 2, "T4", 96),
        (2, 8, "V100", 96),
    ]
    assert spec.nodes[0].memory_mib == 512 * 1024


def test_blanks_of_a_plan_are_unknown_and_not_zero(tmp_path: Path) -> None:
    """A blank plan_gpu requests no GPU, as the servers of job 2 do; a blank plan_cpu is unknown."""
    shutil.copytree(SAMPLES / "pai", tmp_path / "pai", ignore=shutil.ignore_patterns("damaged"))
    tasks = tmp_path / "pai" / "pai_task_table.csv"
    tasks.write_text(
        tasks.read_text()
        .replace("1.0,Terminated,494410.0,495000.0,600.0,29.296875", "1.0,Terminated,494410.0,495000.0,,")
        .replace("job0003,worker,2.0", "job0003,worker,")
    )
    conversion = convert_original("pai", Request(tmp_path / "pai"))
    trace = conversion.trace
    assert trace.num_gpus.tolist() == [0.5, 2, 2]
    assert np.isnan(trace.num_cpus[0])
    assert np.isnan(trace.extra["memory_mib"][0])
    assert trace.num_cpus.tolist()[1:] == [36, 6]
    assert noted(conversion.accounts[1]) == {
        "plan_gpu is blank: its instances ask for no GPU": [2, 4],
        "inst_num is blank: counted as one instance": [5],
    }


def test_repeated_task_is_one_task(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "pai", tmp_path / "pai", ignore=shutil.ignore_patterns("damaged"))
    for file in (tmp_path / "pai").iterdir():
        file.write_text("".join(line * 2 for line in file.read_text().splitlines(keepends=True)))
    there, here = (
        convert_original("pai", Request(at, cluster_name="c")) for at in (tmp_path / "pai", PAI.path)
    )
    for header, cells in here.trace.columns().items():
        np.testing.assert_array_equal(there.trace.columns()[header], cells, err_msg=header)
    assert there.cluster == here.cluster
