"""Resource limits for one rank: stored in its record, enforced by its control group or on its processes."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from rlsched_node.isolation.cgroup import Cgroup

RESERVED_FRAC: Final = 0.05
RESERVED_MIB: Final = (512, 16_384)
"""Minimum and maximum memory that is reserved for the daemon, shims and kernel, MiB. No job gets it."""
OOM_FIRST: Final = 500
"""`oom_score_adj` of a rank that requested no memory. If the node's memory is full, the kernel kills such a
rank before ranks that requested memory: the value adds half of the node's memory to the rank's own use
(proc(5))."""
MAX_PROCESSES: Final = 16_384
"""Default limit of processes and threads of a rank; half of the kernel's limit if that is less. Eight GPUs
with sixteen data loaders of a hundred threads each need 12,800."""


class RankLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits for one rank; 0 or an empty list sets no limit.

    Attributes:
        cpus: IDs of the logical processors on which the rank runs.
        owns_cpus: The processors are exclusive, except `lent_cpus`. If False, the rank shares them with all
            ranks that requested no cores.
        lent_cpus: Processors in `cpus` that are lent to the rank until another rank needs them.
        memory_bytes: Host memory of all processes of the rank together.
        asked_memory: The job requested this memory. If False, the limit is a part of the node's memory, in
            proportion to the rank's GPUs.
        processes: Maximum number of processes and threads.
        devices: Minor numbers of the GPUs whose device files the rank may open; None: all GPUs.
        capabilities: Minor numbers of the files in /dev/nvidia-caps that the rank may open: two for each of
            its MIG instances; None: all files.
        weight: Weight of the rank for contended processor and disk time, 100 for a rank with one GPU.
    """

    cpus: list[int] = []
    owns_cpus: bool = False
    lent_cpus: list[int] = []
    memory_bytes: int = 0
    asked_memory: bool = False
    processes: int = 0
    devices: list[int] | None = None
    capabilities: list[int] | None = None
    weight: int = 100


class ProcessSetup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits that a shim sets on the command's process; the descendants inherit them.

    Attributes:
        cpus: IDs of the logical processors; empty: the daemon's processors.
        data_bytes: RLIMIT_DATA, for each process separately; 0: the daemon's limit.
        processes: RLIMIT_NPROC, for all processes of the job's user together; 0: the daemon's limit.
        oom_score_adj: Adjustment for the kernel's OOM killer; processes with the highest value are killed
            first.
    """

    cpus: list[int] = []
    data_bytes: int = 0
    processes: int = 0
    oom_score_adj: int = 0


def hold(group: Cgroup, limits: RankLimits) -> ProcessSetup:
    """Set a rank's limits on its new control group. Return the limits that the group does not enforce.

    The shim sets the returned limits on the rank's processes. They include memory only if the job requested
    memory, because RLIMIT_DATA also limits memory that is reserved and never used.
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
    """Return the processors of this machine that represent the given processors of a node.

    A processor that this process may use represents itself. Others, such as simulated ones, are mapped to
    processors that this process may use.
    """
    here = sorted(os.sched_getaffinity(0))
    return sorted({cpu if cpu in here else here[cpu % len(here)] for cpu in cpus})


def in_words(cpus: list[int]) -> str:
    """Return processors in the kernel's list format: `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def numbers(text: str) -> frozenset[int]:
    """Return the processor IDs in a text in the kernel's list format, such as `0-3,8`.

    Raises:
        ValueError: the text has another format.
    """
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def memory_for_jobs_mib() -> int:
    """Return the memory of this machine that all jobs together may use, MiB."""
    total_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    reserved = min(max(int(total_mib * RESERVED_FRAC), RESERVED_MIB[0]), RESERVED_MIB[1])
    return max(total_mib - reserved, 1)


def most_processes() -> int:
    """Return the default limit of processes and threads of a rank."""
    found = [MAX_PROCESSES]
    for name in ("pid_max", "threads-max"):
        try:
            with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
                found.append(int(file.read()) // 2)
        except (OSError, ValueError):
            continue
    return min(found)
