"""Slurm's JSON, read as facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlsched.engine.facts import SlurmError, comment_of, hosts_of, jobs_of, marks_of, nodes_of, numbers_of

JOB: dict[str, Any] = {
    "job_id": 7,
    "name": "train",
    "user_name": "ada",
    "partition": "gpu",
    "job_state": "PENDING",
    "state_reason": "JobHeldUser",
    "admin_comment": "rlsched:g=2;n=1;s=6b-1;x=1",
    "priority": 0,
    "time_limit": 5,
}


def json_of(what: str, *things: dict[str, Any], **more: object) -> bytes:
    return json.dumps({"errors": [], what: list(things), **more}).encode()


def test_held_job() -> None:
    (job,) = jobs_of(json_of("jobs", JOB)).values()
    assert (job.key, job.is_held, job.time_limit_s, job.mark("g")) == ("7", True, 300.0, 2)
    assert not any((job.runs, job.is_over, job.depends, job.is_exclusive, job.is_held_by_user))


def test_tasks_of_an_array_are_jobs() -> None:
    rest = {**JOB, "job_id": 9, "array_job_id": 9, "array_task_string": "2-3,7%2", "array_max_tasks": 2}
    one = {**JOB, "job_id": 10, "array_job_id": 9, "array_task_id": 1, "job_state": "RUNNING", "priority": 5}
    jobs = jobs_of(json_of("jobs", rest, one))
    assert sorted(jobs) == ["9_1", "9_2", "9_3", "9_7"]
    assert {job.array_limit for key, job in jobs.items() if key != "9_1"} == {2}


@pytest.mark.parametrize(
    ("state", "status", "reason", "code"),
    [
        ("COMPLETED", 0, "", 0),
        ("FAILED", 3 << 8, "", 3),
        ("CANCELLED", 15, "cancelled", 143),
        ("TIMEOUT", 0, "time_limit", 0),
        ("NODE_FAIL", 0, "node_stopped", 0),
        ("FAILED", {"return_code": {"set": True, "number": 4}}, "", 4),
        ("FAILED", {"return_code": {"number": 0}, "signal": {"id": {"set": True, "number": 9}}}, "", 137),
    ],
)
def test_ends_of_jobs(state: str, status: object, reason: str, code: int) -> None:
    (job,) = jobs_of(json_of("jobs", {**JOB, "job_state": state, "exit_code": status})).values()
    assert (job.is_over, job.end_reason, job.exit_code) == (True, reason, code)


@pytest.mark.parametrize("state", ["COMPLETING", ["PENDING", "COMPLETING"], ["FAILED", "COMPLETING"]])
def test_job_whose_processes_are_still_ending_runs(state: object) -> None:
    (job,) = jobs_of(json_of("jobs", {**JOB, "job_state": state})).values()
    assert (job.state, job.runs, job.is_over) == ("COMPLETING", True, False)


def test_only_batch_jobs_can_be_requeued() -> None:
    flags = [(True, True), (True, False), (False, True)]
    jobs = [{**JOB, "job_id": 1, "requeue": requeue, "batch_flag": batch} for requeue, batch in flags]
    assert [jobs_of(json_of("jobs", job))["1"].may_requeue for job in jobs] == [True, False, False]


def test_nodes_and_gpus_of_a_running_job() -> None:
    where = {"nodes": "n[1-2]", "gres_detail": ["gpu:i1:1(IDX:1),gpu:i3:1(IDX:3)", "gpu:h100:2(IDX:0,2)"]}
    (job,) = jobs_of(json_of("jobs", {**JOB, "job_state": "RUNNING", **where})).values()
    assert (job.nodes, job.gpus) == (["n1", "n2"], [[1, 3], [0, 2]])


def test_unreachable_controller_is_reported() -> None:
    """Its exit code is 0, and its list of jobs is empty."""
    for read, what in ((jobs_of, "jobs"), (nodes_of, "nodes")):
        with pytest.raises(SlurmError, match="Failed while looking"):
            read(json.dumps({"errors": [{"description": "Failed while looking"}], what: []}).encode())
    for text in (b"", b"{}", b"[]", b'{"jobs": [{}]}', b'{"jobs": 3}', b'{"jobs": [{"job_id": "x"}]}'):
        with pytest.raises(SlurmError):
            jobs_of(text)


@pytest.mark.parametrize(
    ("gres", "gpus", "types", "kind"),
    [
        ("gpu:i0:1,gpu:i1:1", 2, ["i0", "i1"], "generic"),
        ("gpu:h100-1:1,gpu:h100-0:1", 2, ["h100-0", "h100-1"], "h100"),
        ("gpu:a100:4(S:0-1)", 4, [], "a100"),
        ("gpu:8", 8, [], "generic"),
        ("", 0, [], "generic"),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: int, types: list[str], kind: str) -> None:
    node = {"name": "n1", "gres": gres, "state": "idle", "state_flags": [], "partitions": ["gpu"]}
    found = nodes_of(json_of("nodes", node))["n1"]
    assert (found.gpus, found.types, found.gpu_type, found.unusable) == (gpus, types, kind, "")


def test_drained_node() -> None:
    node = {"name": "n1", "gres": "gpu:1", "state": "idle", "state_flags": ["DRAIN"], "reason": "fan"}
    assert nodes_of(json_of("nodes", node))["n1"].unusable == "drain in Slurm: fan"


def test_lists_of_hosts_and_numbers() -> None:
    assert hosts_of("n[1-2,07],login,r[1-2]n[3]") == ["n1", "n2", "n07", "login", "r1n3", "r2n3"]
    assert numbers_of("0,2-3") == [0, 2, 3]
    assert hosts_of("") == numbers_of("") == []


def test_marks_are_read_back() -> None:
    marks = {"g": "2", "j": "17.1", "w": "n1+n2"}
    assert marks_of(comment_of(marks)) == marks
    assert marks_of("a user's") is None
