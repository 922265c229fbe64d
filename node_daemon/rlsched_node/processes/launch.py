"""Start of one rank: its environment, its directory, its shim."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.errors import RlschedError
from rlsched.files.space import LOW_DISK_MIB
from rlsched.wire.messages import Launch
from rlsched_node.gpu.device import GpuError, GpuSet
from rlsched_node.isolation.cgroup import Cgroup
from rlsched_node.isolation.devices import FOR_ALL, capability_major, close_others
from rlsched_node.isolation.limits import RankLimits, hold
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes.attempt import grace_s_of, simulated_workload
from rlsched_node.processes.shims import Shims, Spawned
from rlsched_node.processes.shortage import is_shortage
from rlsched_node.processes.store import AttemptDir, LaunchRecord, MpsTerms

MASTER_PORT_FIRST = 20_000
MASTER_PORTS = 10_000
"""Number of ports for gangs (jobs on several nodes), below Linux's ephemeral ports, which begin at 32,768."""
FIRST_RANK_VARIABLE = "RLSCHED_FIRST_RANK"
"""Environment variable with the `RANK` of a node's first process, for `per_gpu.py`."""
SLURMS_VARIABLE = "SLURM_SUBMIT_DIR"
"""Variable that `rlsched submit` sets for a script that needs Slurm's variables. Such a job gets
`slurm_variables`."""
STEPS_VARIABLE = "RLSCHED_STEPS_KEY"
"""Variable with the key of the job's steps. `rlsched submit` sets it for a script for Slurm without
`--launch`. Such a script runs on the first node only (`rlsched_node.slurm`)."""
STEP_PORT_FIRST = 30_000
STEP_PORTS = 2_768
STEP_PORTS_OF_A_JOB = 8
"""Number of ports at which the server of a job's steps may listen, in the range 30,000 to 32,767, below
Linux's ephemeral ports. The server uses the first free one."""
DIRECTORY_VARIABLE = "RLSCHED_ATTEMPT_DIR"
"""Variable that marks every process of a rank, so that processes left by a killed shim can be found."""


INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TERM",
        "TMPDIR",
        "TZ",
        "LD_LIBRARY_PATH",
    }
)
"""Variables of the daemon's environment that a job gets."""
OUTPUT_AS_IT_COMES = {"PYTHONUNBUFFERED": "1"}
"""Disables Python's output buffer; otherwise the log would be empty while the job runs."""
INHERITED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_")


class LaunchError(RlschedError):
    """This node cannot start the rank, for example because a GPU is in use or the disk is full.

    `is_for_now`: the cause is temporary and not a fault of the job, so the job waits until the node can start
    it. `free_mib`: free memory of a GPU, MiB, if this is too little for the job; None: another cause.
    """

    def __init__(self, message: str, *, is_for_now: bool = False, free_mib: int | None = None) -> None:
        super().__init__(message)
        self.is_for_now, self.free_mib = is_for_now, free_mib

    @property
    def is_about_memory(self) -> bool:
        return self.free_mib is not None


class Terms(NamedTuple):
    """Conditions under which a rank starts, in addition to its launch order.

    Attributes:
        lease: Path of the node's lease file.
        max_output_mib: Maximum output on disk, MiB; 0: no limit.
        user: User that runs the command; None: the daemon's own user.
        limits: Resource limits for the rank.
        mps: MPS control daemon that serves the rank; None: the rank runs without MPS.
    """

    lease: str = ""
    max_output_mib: int = 0
    user: JobUser | None = None
    limits: RankLimits = RankLimits()
    mps: MpsTerms | None = None


TORCH_VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables with options of PyTorch's allocator, under their present and their earlier name."""
TORCH_FRACTION: Final = "per_process_memory_fraction"


def master_port(job: int, attempt: int) -> int:
    """Return the port of a gang's rank 0: the same on every node, and different for consecutive jobs."""
    return MASTER_PORT_FIRST + (job + 1013 * attempt) % MASTER_PORTS


def step_ports(job: int, attempt: int) -> list[int]:
    """Return the ports at which a job's server of steps may listen: the same on every node."""
    first = STEP_PORTS_OF_A_JOB * job + 1013 * attempt
    return [STEP_PORT_FIRST + (first + place) % STEP_PORTS for place in range(STEP_PORTS_OF_A_JOB)]


def rank_environment(
    launch: Launch,
    *,
    gpus: GpuSet,
    directory: str,
    is_local: bool,
    inherited: Mapping[str, str],
    passed: Collection[str] = (),
    user: JobUser | None = None,
) -> dict[str, str]:
    """Return a rank's environment: variables of the daemon, then of the user and job, then of rlsched.

    A later variable replaces an earlier one of the same name. If rlsched starts one process for each GPU
    (launcher `per-gpu`), the variables of torch.distributed are set as by torchrun: a rank is then a process.

    Args:
        launch: The launch order.
        gpus: The node's GPUs, for their names in CUDA_VISIBLE_DEVICES.
        directory: The job's directory.
        is_local: All nodes are on this machine, so rank 0 is at 127.0.0.1 instead of its node's name.
        inherited: The daemon's environment. It may contain secrets, so jobs get only `INHERITED` and
            `INHERITED_PREFIXES`.
        passed: Names of further variables of the daemon's environment that jobs get.
        user: User that runs the rank; None: the daemon's own user.
    """
    env = OUTPUT_AS_IT_COMES | {
        name: value
        for name, value in inherited.items()
        if name in INHERITED or name in passed or name.startswith(INHERITED_PREFIXES)
        if _is_text(name) and _is_text(value)
    }
    if user is not None:
        env.pop("TMPDIR", None)
        env |= user.environment()
    env |= launch.env
    address = launch.master or ("127.0.0.1" if is_local else launch.nodes[0])
    port = str(master_port(launch.job, launch.attempt))
    node_rank, num_nodes = str(launch.rank), str(launch.num_ranks)
    env |= {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus.visible_as(gpu) for gpu in launch.gpus),
        "RLSCHED_JOB": str(launch.job),
        "RLSCHED_ATTEMPT": str(launch.attempt),
        "RLSCHED_NODE_RANK": node_rank,
        "RLSCHED_NUM_NODES": num_nodes,
        "RLSCHED_GPUS_ON_NODE": str(len(launch.gpus)),
        "RLSCHED_NODES": ",".join(launch.nodes),
        "RLSCHED_MASTER_ADDR": address,
        "RLSCHED_MASTER_PORT": port,
        "RLSCHED_RANK": node_rank,
        "RLSCHED_NUM_RANKS": num_nodes,
        "RLSCHED_GRACE_S": f"{grace_s_of(launch):g}",
        DIRECTORY_VARIABLE: directory,
    }
    if SLURMS_VARIABLE in launch.env:
        env |= slurm_variables(launch, address)
    if launch.launcher == "per-gpu":
        gpus_of_ranks = launch.gpus_of_ranks or [len(launch.gpus)] * launch.num_ranks
        world_size = str(sum(gpus_of_ranks))
        env |= {
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": str(len(launch.gpus)),
            "GROUP_RANK": node_rank,
            "GROUP_WORLD_SIZE": num_nodes,
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": world_size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            FIRST_RANK_VARIABLE: str(sum(gpus_of_ranks[: launch.rank])),
        }
    return env


def torch_memory_limit(launch: Launch, env: Mapping[str, str], gpu_memory_mib: int) -> dict[str, str]:
    """Return the variable that limits the GPU memory of PyTorch, for a rank that can share its GPUs.

    PyTorch's allocator then takes at most the memory that the rank needs (`Launch.gpu_need_mib`), without the
    CUDA context. Source: the option `per_process_memory_fraction` of `c10/cuda/CUDAAllocatorConfig.h` in
    torch 2.13. Versions of torch without the option raise an error.

    Args:
        launch: The launch order.
        env: Other variables of the rank.
        gpu_memory_mib: Memory of the smallest of the rank's GPUs, MiB; 0: unknown.

    Returns:
        The variable. Empty if the rank does not share GPUs, the needed memory or the memory of the GPU is
        unknown, the rank needs the whole GPU, or the job has set the option.
    """
    if not (launch.shares or launch.beside) or not launch.gpu_need_mib or not gpu_memory_mib:
        return {}
    name = next((one for one in TORCH_VARIABLES if one in env), TORCH_VARIABLES[0])
    given = env.get(name, "")
    if TORCH_FRACTION in given or launch.gpu_need_mib >= gpu_memory_mib:
        return {}
    limit = f"{TORCH_FRACTION}:{launch.gpu_need_mib / gpu_memory_mib:.4f}"
    return {name: f"{given},{limit}" if given else limit}


def slurm_variables(launch: Launch, address: str) -> dict[str, str]:
    """Return Slurm's variables for a job and its nodes, under their present names.

    `SLURM_NTASKS`, `SLURM_PROCID` and the earlier names `SLURM_JOBID` and `SLURM_NODELIST` are not set,
    because libraries would conclude that `srun` has started this process. In a job with steps,
    `rlsched_node.slurm.batch` and `srun` set them.

    Args:
        launch: The launch order.
        address: Address of the job's first node.
    """
    restarts = {"SLURM_RESTART_COUNT": str(launch.attempt - 1)} if launch.attempt > 1 else {}
    return restarts | {
        "SLURM_JOB_ID": str(launch.job),
        "SLURM_JOB_USER": launch.person,
        "SLURM_JOB_NUM_NODES": str(launch.num_ranks),
        "SLURM_NNODES": str(launch.num_ranks),
        "SLURM_NODEID": str(launch.rank),
        "SLURM_JOB_NODELIST": ",".join(launch.nodes),
        "SLURMD_NODENAME": launch.nodes[launch.rank],
        "SLURM_GPUS_ON_NODE": str(len(launch.gpus)),
        "SLURM_LAUNCH_NODE_IPADDR": address,
    }


def launch_command(launch: Launch, env: Mapping[str, str]) -> list[str]:
    """Return the command for a rank's shim: the job's command, or a launcher that starts it once per GPU.

    Args:
        launch: The launch order.
        env: Environment of the rank.
    """
    match launch.launcher:
        case "torchrun":
            return [
                "torchrun",
                f"--nnodes={launch.num_ranks}",
                f"--nproc-per-node={len(launch.gpus)}",
                f"--node-rank={launch.rank}",
                f"--master-addr={env['RLSCHED_MASTER_ADDR']}",
                f"--master-port={env['RLSCHED_MASTER_PORT']}",
                *launch.command,
            ]
        case "per-gpu":
            return [sys.executable, "-I", "-S", str(Path(__file__).with_name("per_gpu.py")), *launch.command]
    return batch_command(launch, env) if STEPS_VARIABLE in env else launch.command


def has_launcher(launch: Launch, env: Mapping[str, str]) -> bool:
    """Return whether `launch_command` returns a launcher of rlsched."""
    return launch.launcher == "per-gpu" or (launch.launcher != "torchrun" and STEPS_VARIABLE in env)


def batch_command(launch: Launch, env: Mapping[str, str]) -> list[str]:
    """Return the command for a rank of a job with steps: its script on the first node, an agent elsewhere."""
    terms = {
        "attempt": f"{launch.job}.{launch.attempt}",
        "rank": launch.rank,
        "nodes": launch.nodes,
        "hosts": launch.hosts or [env["RLSCHED_MASTER_ADDR"], *[""] * (launch.num_ranks - 1)],
        "gpus": launch.gpus_of_ranks or [len(launch.gpus)] * launch.num_ranks,
        "cores": launch.cores,
        "asked_nodes": int(launch.env.get("SLURM_NNODES", "0")),
        "master": env["RLSCHED_MASTER_ADDR"],
        "ports": step_ports(launch.job, launch.attempt),
    }
    program = str(Path(__file__).parents[1] / "slurm" / "batch.py")
    return [sys.executable, "-I", "-S", program, json.dumps(terms), *launch.command]


def refuse_on_full_gpus(gpus: GpuSet, wanted: list[int], gpu_memory_mib: int) -> None:
    """Check that each GPU has the free memory that the job requested.

    Raises:
        LaunchError: a GPU has less free memory. A GPU that does not answer is assumed to have enough.
    """
    for gpu in wanted if gpu_memory_mib else ():
        try:
            total, used = gpus.memory_total_mib(gpu), gpus.memory_used_mib(gpu)
        except GpuError:
            continue
        if total is not None and used is not None and total - used < gpu_memory_mib:
            raise LaunchError(
                f"GPU {gpu} has {total - used} of {total} MiB free, and the job asks for {gpu_memory_mib}",
                is_for_now=True,
                free_mib=total - used,
            )


def free_and_wanted_mib(directory: Path, min_free_mib: int | None) -> tuple[int, int]:
    """Return (free space on the disk of a directory, required space), MiB. See `refuse_on_full_disk`."""
    disk = os.statvfs(directory)
    free, size = disk.f_bavail * disk.f_frsize >> 20, disk.f_blocks * disk.f_frsize >> 20
    return free, min(LOW_DISK_MIB, size // 20) if min_free_mib is None else min_free_mib


def refuse_on_full_disk(directory: Path, min_free_mib: int | None) -> None:
    """Check the free space of a disk. The required space stays free for running jobs, and for journals.

    Args:
        directory: A directory on the disk to check.
        min_free_mib: Required free space, MiB; None: 1 GiB, or a twentieth of a smaller disk.

    Raises:
        LaunchError: the disk has less free space.
    """
    free, wanted = free_and_wanted_mib(directory, min_free_mib)
    if free < wanted:
        raise LaunchError(
            f"the disk of {directory} has {free} MiB free, and the start of a job needs {wanted} MiB "
            "(--min-free-mib): remove files there",
            is_for_now=True,
        )


def deny_other_gpus(group: str, limits: RankLimits) -> None:
    """Deny a control group the GPUs and MIG instances that its rank does not hold.

    Raises:
        OSError: the kernel does not permit it.
    """
    if limits.devices is not None:
        close_others(group, [*limits.devices, *FOR_ALL])
    major = capability_major() if limits.capabilities is not None else None
    if limits.capabilities is not None and major is not None:
        close_others(group, limits.capabilities, major)


def start_rank(
    launch: Launch,
    directory: AttemptDir,
    env: dict[str, str],
    terms: Terms,
    cgroup: Cgroup,
    shims: Shims,
) -> Spawned:
    """Create the attempt's directories and start its shim, which outlives this process.

    Args:
        launch: The launch order.
        directory: Directories of the attempt's records and output, and of the job's own files.
        env: Environment of the rank.
        terms: Further conditions of the rank.
        cgroup: Control group of the rank, not created yet.
        shims: Starts the shim.

    Raises:
        LaunchError: this rank was started before, or the node cannot write or fork.
    """
    user = terms.user
    group = cgroup if cgroup.path and cgroup.create() else Cgroup("")
    if group.path:
        try:
            deny_other_gpus(group.path, terms.limits)
        except OSError as error:
            group.remove()
            raise LaunchError(f"cannot deny the rank access to other GPUs: {error.strerror}") from error
    record = LaunchRecord(
        gpus=launch.gpus,
        command=launch_command(launch, env),
        env=env,
        cwd=os.path.abspath(launch.cwd or (user.home if user else os.path.expanduser("~"))),
        time_limit_s=launch.time_limit_s,
        lease=terms.lease if launch.lost_after_s else "",
        lost_after_s=launch.lost_after_s,
        max_output_bytes=terms.max_output_mib << 20 or None,
        cgroup=group.path,
        user=user,
        limits=terms.limits,
        setup=hold(group, terms.limits),
        hears_limits=True,
        workload=simulated_workload(launch),
        grace_s=grace_s_of(launch),
        mps=terms.mps,
        output=launch.output,
        error=launch.error,
        appends=launch.appends,
        whole_lines=launch.whole_lines,
        has_launcher=has_launcher(launch, env),
    )
    try:
        directory.create(record)
    except FileExistsError as error:
        raise LaunchError(f"{error.filename} exists: this rank was started before") from error
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "no space left" if is_full else error.strerror
        raise LaunchError(f"cannot write {directory.path}: {what}", is_for_now=is_full) from error
    try:
        return shims.start(directory.path)
    except OSError as error:
        directory.remove()
        group.remove()
        raise LaunchError(
            f"cannot start a process: {error.strerror}", is_for_now=is_shortage(error)
        ) from error


def _is_text(value: str) -> bool:
    """Return whether a variable of the environment is valid UTF-8. Only such text can be written as JSON."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
