"""Plans of steps: nodes, numbers and GPUs of the tasks, as Slurm's manual describes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlsched_node.slurm.hostlist import counted
from rlsched_node.slurm.options import DEFAULTS, parsed
from rlsched_node.slurm.plans import JobNode, Plan, PlanError, Use, numbered, plan, spread

NODES = [JobNode(f"10.0.0.{number}", f"n{number}", 4) for number in range(4)]


def planned(
    line: str,
    job: list[JobNode] | None = None,
    used: list[Use] | None = None,
    asked_nodes: int = 0,
    **environ: str,
) -> Plan:
    """The plan of a step that starts at once."""
    job = NODES[:2] if job is None else job
    found = plan(options(line, **environ), job, used or [Use()] * len(job), asked_nodes)
    assert found is not None
    return found


def options(line: str, **environ: str) -> dict[str, Any]:
    return parsed([*line.split(), "true"], environ).options


@pytest.mark.parametrize(
    ("line", "nodes", "tasks"),
    [
        ("", [0, 1], [[0], [1]]),
        ("-N2 -n5", [0, 1], [[0, 1, 2], [3, 4]]),
        ("-n 4", [0, 1], [[0, 1], [2, 3]]),
        ("-n1", [0], [[0]]),
        ("-N1 -n1", [0], [[0]]),
        ("-N1", [0], [[0]]),
        ("-N 1-2 --ntasks-per-node=2", [0, 1], [[0, 1], [2, 3]]),
        ("--ntasks-per-node 3", [0, 1], [[0, 1, 2], [3, 4, 5]]),
        ("-n 5 -m cyclic", [0, 1], [[0, 2, 4], [1, 3]]),
        ("-n 5 --distribution=block:cyclic", [0, 1], [[0, 1, 2], [3, 4]]),
        ("-w n1", [1], [[0]]),
        ("-w 10.0.0.1 -n2", [1], [[0, 1]]),
        ("-w n1 -N2", [1, 0], [[0], [1]]),
        ("-w n[0-1] --ntasks-per-node=2", [0, 1], [[0, 1], [2, 3]]),
        ("-x n0", [1], [[0]]),
        ("-r 1", [1], [[0]]),
    ],
)
def test_nodes_and_numbers(line: str, nodes: list[int], tasks: list[list[int]]) -> None:
    found = planned(line)
    assert (found.nodes, found.tasks) == (nodes, tasks)


@pytest.mark.parametrize(
    ("line", "ntasks", "per_node", "counts"),
    [
        ("", "8", "4", [4, 4]),
        ("", "6", "", [3, 3]),
        ("--ntasks-per-node=1", "8", "4", [1, 1]),
        ("-N1", "8", "4", [4]),
        ("-N1", "6", "", [6]),
        ("-w n1", "8", "4", [4]),
        ("-n 3", "8", "4", [2, 1]),
    ],
)
def test_directives_of_the_job_are_the_default(
    line: str, ntasks: str, per_node: str, counts: list[int]
) -> None:
    assert planned(line, SLURM_NTASKS=ntasks, SLURM_NTASKS_PER_NODE=per_node).counts == counts


@pytest.mark.parametrize(
    ("gpus", "line", "counts"),
    [
        ([8], "", [8]),
        ([8], "-N 2 --ntasks-per-node=4", [8]),
        ([8], "--ntasks-per-node=4", [8]),
        ([8], "--ntasks-per-node=1", [1]),
        ([2, 2, 2, 2], "", [2, 2, 2, 2]),
        ([2, 2, 2, 2], "-N 2 --ntasks-per-node=4", [2, 2, 2, 2]),
        ([2, 2, 2, 2], "-N 2 --ntasks-per-node=1", [1, 1, 1, 1]),
        ([2, 2, 2, 2], "-N 1 --ntasks-per-node=4", [4]),
        ([6, 2], "", [6, 2]),
        ([6, 2], "--ntasks-per-node=4", [6, 2]),
        ([6, 2], "-n 2", [1, 1]),
    ],
)
def test_tasks_follow_the_gpus_if_the_job_has_other_nodes(
    gpus: list[int], line: str, counts: list[int]
) -> None:
    """The job asked for 2 nodes with 4 GPUs and 4 tasks each."""
    job = [JobNode(f"n{number}", f"n{number}", count) for number, count in enumerate(gpus)]
    found = planned(line, job, asked_nodes=2, SLURM_NTASKS="8", SLURM_NTASKS_PER_NODE="4")
    assert found.counts == counts


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("-n 2", [[[0, 1, 2, 3]], [[0, 1, 2, 3]]]),
        ("-n 4 --gpus-per-task=2", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]),
        ("-n 2 --gpus-per-task=1 --gpu-bind=none", [[[0]], [[0]]]),
        ("-N1 -n 4 --gpu-bind=single:2", [[[0], [0], [1], [1]]]),
        ("-N1 -n 2 --gpu-bind=verbose,per_task:2", [[[0, 1], [2, 3]]]),
        ("-N1 -n 3 --gpu-bind=map_gpu:3,0", [[[3], [0], [3]]]),
        ("-N1 -n 2 --gpu-bind=mask_gpu:0x3,0xc", [[[0, 1], [2, 3]]]),
        ("-N1 -n 1 -G 2", [[[0, 1]]]),
        ("-N2 -n 2 -G 3", [[[0, 1]], [[0]]]),
        ("--gres=gpu:a100:1", [[[0]], [[0]]]),
        ("--gpus-per-node=3", [[[0, 1, 2]], [[0, 1, 2]]]),
        ("--gres=none", [[[]], [[]]]),
    ],
)
def test_gpus_of_tasks(line: str, gpus: list[list[list[int]]]) -> None:
    assert planned(line).gpus == gpus


def test_directive_with_gpus_per_task_is_the_default() -> None:
    assert planned("-N1 -n 2", SLURM_GPUS_PER_TASK="2").gpus == [[[0, 1], [2, 3]]]


def test_step_takes_the_gpus_that_it_requests() -> None:
    used = [Use({0, 2}), Use({1})]
    assert planned("-N1 -n1 -G2", used=used).gpus == [[[1, 3]]]
    assert planned("-N1 -n1 -G3", used=used) == Plan([1], [[0]], [[[0, 2, 3]]], [Use([0, 2, 3])])
    assert planned("-N1 -n1 -G3 --overlap", used=used) == Plan([0], [[0]], [[[0, 1, 2]]], [Use()])
    assert planned("-n1", used=used) == Plan([0], [[0]], [[[0, 1, 2, 3]]], [Use()])
    assert plan(options("-N1 -n1 -G4"), NODES[:2], used) is None


def test_exclusive_step_takes_slots() -> None:
    job = [node._replace(slots=2) for node in NODES[:2]]
    used = [Use(slots=1), Use()]
    assert planned("-N1 -n2 --exclusive", job, used).taken == [Use((), 2)]
    assert planned("-N1 -n2 --exclusive", job, used).nodes == [1]
    assert planned("-N1 -n1 --exact", job, used).nodes == [0]
    assert planned("-N1 -n9 --exclusive", job, used).taken == [Use((), 2)], "more than the job requested"
    assert plan(options("-N2 -n4 --exclusive"), job, used) is None
    assert planned("-N2 -n4", job, used).taken == [Use(), Use()]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-N 3", "--nodes 3: expected at most the 2 nodes that the step may use"),
        ("-w n9", "--nodelist: n9 is not a node of this job: 10.0.0.0, 10.0.0.1"),
        ("-w n[0", "--nodelist 'n[0': unbalanced brackets"),
        ("-x n[0-1]", "the options leave no node"),
        ("-w n0 -x n0", "or name a node that --exclude or --relative leaves out"),
        ("-n1 -G5", "which needs up to 5 GPUs per node; GPUs: 10.0.0.0 4, 10.0.0.1 4"),
        ("-n1 --gpu-bind=map_gpu:4", "--gpu-bind map_gpu:4: expected GPU indices below 4"),
    ],
)
def test_step_that_can_never_run_is_refused(line: str, said: str) -> None:
    with pytest.raises(PlanError) as raised:
        plan(options(line), NODES[:2], [Use()] * 2)
    assert said in str(raised.value)


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(0, 40),
    st.sampled_from(["block", "cyclic"]),
)
def test_every_task_is_on_one_node(weights: list[int], more: int, distribution: str) -> None:
    counts = spread(len(weights) + more, weights)
    assert min(counts) >= 1
    tasks = numbered(counts, distribution)
    assert [len(one) for one in tasks] == counts
    assert sorted(number for one in tasks for number in one) == list(range(len(weights) + more))


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 4))
def test_one_task_per_gpu_is_as_many_as_gpus_on_each_node(gpus: list[int], times: int) -> None:
    assert spread(sum(gpus) * times, gpus) == [count * times for count in gpus]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([2, 2, 2], "2(x3)"), ([3, 2], "3,2"), ([2, 2, 1, 1, 2], "2(x2),1(x2),2"), ([4], "4")],
)
def test_tasks_per_node_in_slurms_notation(numbers: list[int], text: str) -> None:
    assert counted(numbers) == text


def test_defaults_are_complete() -> None:
    assert set(options("")) == set(DEFAULTS)
