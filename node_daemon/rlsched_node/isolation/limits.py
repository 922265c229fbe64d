"""Resource limits of one rank: kept in its record, enforced by its control group or on its processes."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from rlsched_node.isolation.cgroup import Cgroup

RESERVED_FRAC: Final = 0.05
RESERVED_MIB: Final = (512, 16_384)
"""Part of a node's memory that no job gets, and its bounds: daemon, shims and kernel need it."""
OOM_FIRST: Final = 500
"""`oom_score_adj` of a rank that requested no memory: on a full node it is killed before ranks that did.
Half of the scale of proc(5): a rank counts as if it had half of the node's memory on top of its own."""
MAX_PROCESSES: Final = 16_384
"""Default limit of processes and threads of a rank, or half of the kernel's limit if that is less: eight
GPUs with sixteen loaders of a hundred threads each are 12,800."""


class RankLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one rank; 0 and empty: no limit.

    Attributes:
        cpus: Numbers of the processors that it runs on.
        owns_cpus: The processors are exclusive; else the rank shares them with all ranks that requested none.
        memory_bytes: Host memory of all its processes together.
        asked_memory: The job requested this memory; else it is the share of its GPUs.
        processes: Processes and threads.
        devices: Minor numbers of the GPUs whose files it may open; None: all GPUs.
        weight: Its share of contended processor and disk time, 100 for a rank with one GPU.
    """

    cpus: list[int] = []
    owns_cpus: bool = False
    memory_bytes: int = 0
    asked_memory: bool = False
    processes: int = 0
    devices: list[int] | None = None
    weight: int = 100


class ProcessSetup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits that a shim sets on the process that becomes the command; its descendants inherit them.

    Attributes:
        cpus: Its processors; empty: as the daemon's.
        data_bytes: RLIMIT_DATA, of each process; 0: as the daemon's.
        processes: RLIMIT_NPROC, of all processes of its user together; 0: as the daemon's.
        oom_score_adj: Adjustment for the kernel's OOM killer; the highest is killed first.
    """

    cpus: list[int] = []
    data_bytes: int = 0
    processes: int = 0
    oom_score_adj: int = 0


def hold(group: Cgroup, limits: RankLimits) -> ProcessSetup:
    """Apply limits to a new group. Returns the limits that must be set on each process instead.

    Memory that the job did not request is limited only by a group: RLIMIT_DATA counts memory that a process
    has reserved and never touched, and would end harmless programs.
    """
    cpus = on_machine(limits.cpus)
    held = group.write(
        {
            "memory.max": limits.memory_bytes,
            "memory.swap.max": "0" if limits.memory_bytes else "",
            "memory.oom.group": "1" if limits.memory_bytes else "",
            "pids.max": limits.processes,
            "cpuset.cpus": in_words(cpus),
            "cpu.weight": limits.weight,
            "io.weight": limits.weight,
        }
    )
    by_process = limits.asked_memory and "memory.max" not in held
    return ProcessSetup(
        cpus=[] if "cpuset.cpus" in held else cpus,
        data_bytes=limits.memory_bytes if by_process else 0,
        processes=0 if "pids.max" in held else limits.processes,
        oom_score_adj=0 if limits.asked_memory else OOM_FIRST,
    )


def on_machine(cpus: list[int]) -> list[int]:
    """Processors of this machine for the processors of a node: the same numbers, if there are as many."""
    here = sorted(os.sched_getaffinity(0))
    return sorted({cpu if cpu in here else here[cpu % len(here)] for cpu in cpus})


def in_words(cpus: list[int]) -> str:
    """Processors in the kernel's list format: `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers(text: str) -> frozenset[int]:
    """Parse the kernel's list format of processors.

    Raises:
        ValueError: the text is not such a list.
    """
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def memory_for_jobs_mib() -> int:
    """Memory of this machine for all jobs together, MiB."""
    total_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    reserved = min(max(int(total_mib * RESERVED_FRAC), RESERVED_MIB[0]), RESERVED_MIB[1])
    return max(total_mib - reserved, 1)


def most_processes() -> int:
    """Default limit of processes and threads of a rank."""
    found = [MAX_PROCESSES]
    for name in ("pid_max", "threads-max"):
        try:
            with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
                found.append(int(file.read()) // 2)
        except (OSError, ValueError):
            continue
    return min(found)
