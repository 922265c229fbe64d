"""Helios' `cluster_log.csv` and `cluster_gpu_number.csv`.

The header, the states and the example follow S-Lab-System-Group/HeliosData, README.md and
data/Venus/cluster_gpu_number.csv, commit 106713b0d0fc761c70073b4af018681656b60f48.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import ClusterSpecError, TraceError
from tests.support.sim.samples import WHOLE, convert, convert_text, noted, skipped

HELIOS = WHOLE[0]
HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
PUBLISHED = (  # two rows of the publisher's example
    "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0"
    "\n"
    "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
)


def test_published_example(tmp_path: Path) -> None:
    trace = convert_text("helios", tmp_path / "cluster_log.csv", HEADER + PUBLISHED, strict=True).trace
    assert trace.job_id.tolist() == ["1425511", "1425512"]
    assert trace.user.tolist() == ["uXBbc", "uVMrF"]
    assert trace.vc.tolist() == ["vcJkd", "vchbv"]
    assert trace.submit_s.tolist() == [0, 26]
    assert trace.duration_s.tolist() == [36848, 249]
    assert trace.num_gpus.tolist() == [1, 4]
    assert trace.num_cpus.tolist() == [1, 16]
    assert trace.status.tolist() == ["COMPLETED", "FAILED"]


def test_jobs_of_one_second_keep_their_order_and_cpu_jobs_stay() -> None:
    conversion = convert(HELIOS)
    trace = conversion.trace
    assert trace.job_id.tolist() == ["2100004", "2100005", "2100006", "2100008", "2100009", "2100010"]
    assert trace.num_gpus.tolist() == [1, 16, 0, 8, 2, 1]
    assert trace.extra["queue_s"].tolist() == [0, 600, 0, 60, 30, 0]
    assert trace.extra["x_num_nodes"].tolist() == ["1", "2", "1", "1", "1", "1"]
    assert conversion.origin == "2020-06-09 08:00:10"
    assert skipped(conversion.accounts[0]) == {"never started": [5]}


def test_rare_states_stay_and_a_suspended_job_ran_from_start_to_end() -> None:
    """Note 2 of the publisher: TIMEOUT and NODE_FAIL are very rare, SUSPENDED happens once, in Uranus."""
    conversion = convert(HELIOS)
    assert conversion.trace.status.tolist()[3:] == ["TIMEOUT", "NODE_FAIL", "SUSPENDED"]
    assert conversion.trace.duration_s[5] == 1200
    assert noted(conversion.accounts[0]) == {"the column duration is not end - start, which is used": [8]}


def test_columns_in_any_order_and_names_are_read(tmp_path: Path) -> None:
    """Copies of the log in the artifacts of later papers have job names, and durations instead of ends."""
    text = "duration,submit_time,state,gpu_num,vc,user,jobname,job_id\n"
    text += "60,2020-09-01 00:00:00,COMPLETED,2,v,u,bert,7\n"
    trace = convert_text("helios", tmp_path / "cluster_log.csv", text).trace
    assert trace.job_name.tolist() == ["bert"]
    assert trace.duration_s.tolist() == [60]
    assert np.isnan(trace.num_cpus[0])


def test_start_before_the_submission_leaves_the_waiting_blank(tmp_path: Path) -> None:
    row = "1,u,v,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:00,2020-06-09 18:42:00,60,0\n"
    conversion = convert_text("helios", tmp_path / "cluster_log.csv", HEADER + row)
    assert "queue_s" not in conversion.trace.extra
    assert noted(conversion.accounts[0]) == {"started before it was submitted, queue_s left blank": [2]}


def test_cluster_is_taken_from_the_day_in_the_middle() -> None:
    """VCs change from day to day; on the chosen day, one has a part of a node, and one has no node left."""
    conversion = convert(HELIOS, cluster_name="venus")
    spec = conversion.cluster
    assert spec is not None
    assert spec.name == "venus"
    assert [(group.vc, group.count, group.gpus) for group in spec.nodes] == [
        ("vcOne", 2, 8),
        ("vcTwo", 2, 8),
        ("vcTwo", 1, 4),
    ]
    days = conversion.accounts[1]
    assert (days.rows, days.kept) == (3, 3)
    assert noted(days) == {"used for the cluster: the VCs of 2020-06-09": [3]}


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("date,vcJkd,total\n", TraceError, "expected a row per day, got no readable row"),
        ("date,vcJkd,total\n2020-06-09,0,0\n", ClusterSpecError, "this cluster has no GPUs"),
        ("day,vcJkd\n2020-06-09,8\n", TraceError, "line 1: expected a header with date, total"),
    ],
)
def test_table_of_days_without_a_valid_cluster(
    table: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "cluster_gpu_number.csv").write_text(table)
    with pytest.raises(error, match=message):
        convert_text("helios", tmp_path / "cluster_log.csv", HEADER + PUBLISHED, cluster_name="c")


def test_damaged_days_are_skipped(tmp_path: Path) -> None:
    table = "date,vcJkd,total\n2020-06-31,8,8\n2020-06-09,many,8\n2020-05-01,16,16\n"
    (tmp_path / "cluster_gpu_number.csv").write_text(table)
    conversion = convert_text("helios", tmp_path / "cluster_log.csv", HEADER + PUBLISHED, cluster_name="c")
    assert conversion.cluster is not None
    assert conversion.cluster.num_gpus == 16
    assert skipped(conversion.accounts[1]) == {"malformed: date": [2], "malformed: vcJkd": [3]}
