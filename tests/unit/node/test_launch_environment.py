"""Environment of a job's processes, for each launcher, node and GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rlsched.cli.shared.job_options import exported
from rlsched.cli.shared.launch_variables import describes_a_process
from rlsched.wire.messages import Launch, Launcher
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes.launch import (
    launch_command,
    master_port,
    rank_environment,
    step_ports,
    torch_memory_limit,
)

TORCH = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that torchrun sets for each process."""
GANGS = {
    "one GPU of a node": [[3]],
    "some GPUs of a node": [[1, 2]],
    "a whole node": [[0, 1, 2, 3]],
    "two whole nodes": [[0, 1, 2, 3], [0, 1, 2, 3]],
    "one GPU of each of two nodes": [[2], [0]],
    "unequal parts of two nodes": [[0, 1, 2], [3]],
}
SHOW = "import json, os; os.write(1, (json.dumps(dict(os.environ)) + chr(10)).encode())"
PORT = str(master_port(12, 2))


def launch(gpus: list[list[int]], rank: int, launcher: Launcher, env: dict[str, str]) -> Launch:
    return Launch(
        epoch=1,
        job=12,
        attempt=2,
        rank=rank,
        num_ranks=len(gpus),
        nodes=[f"n{number}" for number in range(len(gpus))],
        gpus=gpus[rank],
        command=[sys.executable, "-S", "-c", SHOW],
        env=env,
        cwd="/",
        person="ada",
        launcher=launcher,
        gpus_of_ranks=[len(one) for one in gpus],
        master="10.0.0.7",
    )


def environment(order: Launch) -> dict[str, str]:
    return rank_environment(
        order, gpus=SimulatedGpus(4), directory="/d", is_local=False, inherited={"PATH": os.environ["PATH"]}
    )


def processes(order: Launch) -> list[dict[str, str]]:
    """The environments of the processes that a node starts for this order, by `LOCAL_RANK`."""
    env = environment(order)
    done = subprocess.run(launch_command(order, env), env=env, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda one: int(one.get("LOCAL_RANK", 0)))


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
@pytest.mark.parametrize("launcher", ["none", "torchrun", "per-gpu"])
def test_node_counts_have_rlsched_names(launcher: Launcher, gpus: list[list[int]]) -> None:
    for rank in range(len(gpus)):
        env = environment(launch(gpus, rank, launcher, {}))
        assert env["RLSCHED_NUM_NODES"] == env["RLSCHED_NUM_RANKS"] == str(len(gpus))
        assert env["RLSCHED_NODE_RANK"] == env["RLSCHED_RANK"] == str(rank)
        assert env["RLSCHED_GPUS_ON_NODE"] == str(len(gpus[rank]))
        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, gpus[rank]))
        assert (env["RLSCHED_MASTER_ADDR"], env["RLSCHED_MASTER_PORT"]) == ("10.0.0.7", PORT)


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
def test_without_a_launcher_there_are_no_torchrun_variables(gpus: list[list[int]]) -> None:
    for rank in range(len(gpus)):
        (env,) = processes(launch(gpus, rank, "none", {}))
        assert not set(TORCH) & set(env)


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
def test_process_for_each_gpu_has_all_torchrun_variables(gpus: list[list[int]]) -> None:
    world_size, expected, seen = sum(map(len, gpus)), 0, []
    for rank, mine in enumerate(gpus):
        found = processes(launch(gpus, rank, "per-gpu", {"RANK": "77", "MASTER_ADDR": "elsewhere"}))
        for local, env in enumerate(found):
            assert {name: env[name] for name in TORCH} == {
                "RANK": str(expected),
                "ROLE_RANK": str(expected),
                "WORLD_SIZE": str(world_size),
                "ROLE_WORLD_SIZE": str(world_size),
                "ROLE_NAME": "default",
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(len(mine)),
                "GROUP_RANK": str(rank),
                "GROUP_WORLD_SIZE": str(len(gpus)),
                "MASTER_ADDR": "10.0.0.7",
                "MASTER_PORT": PORT,
            }
            seen.append(expected)
            expected += 1
    assert seen == list(range(world_size))


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
def test_torchrun_sets_its_variables_itself(gpus: list[list[int]]) -> None:
    for rank, mine in enumerate(gpus):
        order = launch(gpus, rank, "torchrun", {})
        env = environment(order)
        assert not set(TORCH) & set(env)
        assert launch_command(order, env) == [
            *("torchrun", f"--nnodes={len(gpus)}", f"--nproc-per-node={len(mine)}", f"--node-rank={rank}"),
            *("--master-addr=10.0.0.7", f"--master-port={PORT}", *order.command),
        ]


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
@pytest.mark.parametrize("launcher", ["none", "torchrun", "per-gpu"])
def test_script_for_slurm_has_slurm_s_names(launcher: Launcher, gpus: list[list[int]]) -> None:
    submitted = {"SLURM_SUBMIT_DIR": "/data", "SLURM_JOB_NAME": "resnet", "SLURM_NODEID": "77"}
    for rank in range(len(gpus)):
        env = environment(launch(gpus, rank, launcher, submitted))
        assert {name: value for name, value in env.items() if name.startswith("SLURM")} == {
            "SLURM_SUBMIT_DIR": "/data",
            "SLURM_JOB_NAME": "resnet",
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_USER": "ada",
            "SLURM_RESTART_COUNT": "1",
            "SLURM_JOB_NUM_NODES": str(len(gpus)),
            "SLURM_NNODES": str(len(gpus)),
            "SLURM_NODEID": str(rank),
            "SLURM_JOB_NODELIST": ",".join(f"n{number}" for number in range(len(gpus))),
            "SLURMD_NODENAME": f"n{rank}",
            "SLURM_GPUS_ON_NODE": str(len(gpus[rank])),
            "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
        }
        first = msgspec.structs.replace(launch(gpus, rank, launcher, submitted), attempt=1)
        assert "SLURM_RESTART_COUNT" not in environment(first)
        assert not [name for name in environment(launch(gpus, rank, launcher, {})) if "SLURM" in name]


@pytest.mark.parametrize("gpus", GANGS.values(), ids=GANGS)
def test_script_with_steps_runs_under_the_program_that_starts_them(gpus: list[list[int]]) -> None:
    submitted = {"SLURM_SUBMIT_DIR": "/data", "SLURM_NNODES": "2", "RLSCHED_STEPS_KEY": "ab"}
    nodes, hosts = (
        [f"n{rank}" for rank in range(len(gpus))],
        [f"10.0.0.{7 + rank}" for rank in range(len(gpus))],
    )
    for rank in range(len(gpus)):
        order = launch(gpus, rank, "none", submitted)
        for given, expected in ((hosts, hosts), ([], ["10.0.0.7", *[""] * (len(gpus) - 1)])):
            order = msgspec.structs.replace(order, hosts=given)
            python, *options, program, terms, script = launch_command(order, environment(order))[:6]
            assert (python, options, script) == (sys.executable, ["-I", "-S"], order.command[0])
            assert Path(program).name == "batch.py"
            assert json.loads(terms) == {
                "attempt": "12.2",
                "rank": rank,
                "nodes": nodes,
                "hosts": expected,
                "gpus": [len(one) for one in gpus],
                "cores": 0,
                "asked_nodes": 2,
                "master": "10.0.0.7",
                "ports": step_ports(12, 2),
            }
        assert environment(order)["SLURM_NNODES"] == str(len(gpus))


def test_ports_of_steps_are_no_other_ports_of_jobs() -> None:
    found = [port for job in range(300) for port in step_ports(job, 1)]
    assert len(set(found)) == len(found)
    ports = {port for job in range(5000) for attempt in range(3) for port in step_ports(job, attempt)}
    others = {master_port(job, 1) for job in range(10_000)}
    assert not ports & others
    assert max(ports) < 32_768, "the first of Linux's ephemeral ports"


def test_user_can_set_them_for_another_launcher() -> None:
    own = {"MASTER_ADDR": "ib0", "RANK": "0"}
    env = environment(launch([[0]], 0, "none", own))
    assert {name: value for name, value in env.items() if name in TORCH} == own


@pytest.mark.parametrize("launcher", ["none", "torchrun", "per-gpu"])
def test_job_submitted_from_a_job_does_not_inherit_its_variables(launcher: Launcher) -> None:
    outer = environment(launch([[0, 1], [2, 3]], 1, launcher, {"RLSCHED_ARRAY_TASK": "3"}))
    process = outer | dict.fromkeys(TORCH, "5") | {"RLSCHED_GRACE_S": "30"}
    process |= {"RLSCHED_STEPS_AT": "127.0.0.1:30000", "RLSCHED_STEPS_PYTHON": "python"}
    process |= {"TORCHELASTIC_RUN_ID": "x", "SLURM_PROCID": "1", "OMPI_COMM_WORLD_RANK": "1"}
    kept = {"RLSCHED_BROKER": "tcp://head:7461", "SLURM_CONF": "/etc/slurm.conf", "SEED": "1"}
    sent = exported("ALL", process | kept)
    assert sent == kept | {"PATH": outer["PATH"], "PYTHONUNBUFFERED": "1"}
    assert {name for name in outer if name.startswith("RLSCHED_")} <= set(filter(describes_a_process, outer))


def test_named_variable_is_sent() -> None:
    own = {"MASTER_ADDR": "ib0", "RANK": "3", "SEED": "1"}
    assert exported("ALL,MASTER_ADDR,RANK=0", own) == {"MASTER_ADDR": "ib0", "RANK": "0", "SEED": "1"}


@pytest.mark.parametrize(
    ("env", "expected"), [({}, "1"), ({"PYTHONUNBUFFERED": ""}, ""), ({"PYTHONUNBUFFERED": "0"}, "0")]
)
def test_python_output_is_unbuffered_unless_the_user_changes_it(env: dict[str, str], expected: str) -> None:
    assert environment(launch([[0]], 0, "none", env))["PYTHONUNBUFFERED"] == expected


LIMIT = "per_process_memory_fraction:0.2500"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": LIMIT}),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            {"PYTORCH_ALLOC_CONF": f"expandable_segments:True,{LIMIT}"},
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
            {"PYTORCH_CUDA_ALLOC_CONF": f"backend:native,{LIMIT}"},
        ),
        ({"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.9"}, {}),
    ],
)
def test_memory_of_torch_is_limited_to_the_need(env: dict[str, str], expected: dict[str, str]) -> None:
    order = msgspec.structs.replace(launch([[0]], 0, "none", env), shares=True, gpu_need_mib=4_000)
    assert torch_memory_limit(order, env, 16_000) == expected
    joining = msgspec.structs.replace(order, shares=False, beside=[3])
    assert torch_memory_limit(joining, env, 16_000) == expected


@pytest.mark.parametrize("change", [{"shares": False}, {"gpu_need_mib": 0}, {"gpu_need_mib": 16_000}, {}])
def test_memory_of_torch_is_not_limited(change: dict[str, int]) -> None:
    """Without co-tenants, without a known need, for a need of the whole GPU, on a GPU of unknown memory."""
    order = msgspec.structs.replace(launch([[0]], 0, "none", {}), shares=True, gpu_need_mib=4_000)
    assert torch_memory_limit(msgspec.structs.replace(order, **change), {}, 16_000 if change else 0) == {}


def test_torch_reads_the_option_that_limits_memory() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra `train`")
    header = Path(torch.__file__).parent / "include" / "c10" / "cuda" / "CUDAAllocatorConfig.h"
    if not header.is_file():
        pytest.skip("this build of torch has no headers")
    assert '"per_process_memory_fraction"' in header.read_text(encoding="utf-8")
