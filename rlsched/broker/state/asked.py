"""What a job asks of its nodes, as the ledger counts it and as people read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final, TypedDict

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.ledger_models import catalogue, workload_number
from rlsched.broker.state.jobs import Job
from rlsched.cluster.demand import Demand
from rlsched.models.catalogue.table import REFERENCE_TYPE
from rlsched.models.gpu_types import asked_type
from rlsched.wire.messages import DryRun, Submit

HIGH_QUANTILE: Final = 2.33
"""Standard deviations above the mean within which 99 % of a normal distribution lie."""


class Sharing(TypedDict):
    """What the ledger is told of a job that may come to share GPUs: arguments of `ClusterState.add_job`."""

    shares: bool
    gpu_need_mib: int


def demand_of(spec: JobSubmitted, learnt_gpu_mib: int = 0) -> Demand:
    """What the ledger counts of a job; cores of journals before version 7 were written down alone.

    `learnt_gpu_mib`: GPU memory that it was seen to need; the larger of that and what was asked for counts.
    """
    gpu_memory_mib, gpu_types = max(spec.gpu_memory_mib, learnt_gpu_mib), tuple(spec.gpu_types)
    if not spec.counted:
        return Demand(gpus=spec.num_gpus, gpu_types=gpu_types, gpu_memory_mib=gpu_memory_mib)
    return Demand(
        gpus=spec.num_gpus,
        gpu_types=gpu_types,
        cpu_milli=spec.num_cpus * 1000,
        memory_mib=spec.memory_mib,
        gpu_memory_mib=gpu_memory_mib,
    )


def needs(job: Job) -> Demand:
    """What the ledger counts of a job that has been submitted, with what was learnt of it since."""
    return demand_of(job.spec, job.gpu_memory_mib)


def sharing_of(spec: JobSubmitted, learnt_gpu_mib: int = 0) -> Sharing:
    """Whether a job may share GPUs, and what it takes of their memory, as its submission says.

    `auto` shares where it is known what the job does to its neighbours: its workload is named, or jobs like
    it have run and their GPU time was seen; and what it takes of GPU memory. The latter is the larger of what
    was asked for and what 99 % of such jobs stay below, else the workload's in the catalogue.

    `learnt_gpu_mib`: as in `demand_of`.
    """
    is_named = workload_number(spec.workload) > 0
    profiles = spec.profiles.values()
    learnt_mib = [
        one.memory_mib.value * math.exp(HIGH_QUANTILE * one.memory_mib.spread)
        for one in profiles
        if one.memory_mib is not None
    ]
    need_mib = max([spec.gpu_memory_mib, learnt_gpu_mib, *map(math.ceil, learnt_mib)]) or -1
    is_known = is_named or (need_mib > 0 and any(one.util_frac is not None for one in profiles))
    return Sharing(shares=spec.share == "yes" or (spec.share == "auto" and is_known), gpu_need_mib=need_mib)


def runs_as(spec: JobSubmitted) -> int:
    """Number of the catalogue's workload that a job is taken for, 0 where nothing is known of it.

    The one that its user named; else the one whose GPU time is nearest to what jobs like it were seen to use:
    what tells most of how two jobs get on.
    """
    named = workload_number(spec.workload)
    seen = [one.util_frac for one in spec.profiles.values() if one.util_frac is not None]
    if named or not seen:
        return named
    util_frac = max(seen, key=lambda one: one.count).value
    return min(range(1, len(_utils()) + 1), key=lambda number: abs(_utils()[number - 1] - util_frac))


@cache
def _utils() -> tuple[float, ...]:
    """GPU time of each workload of the catalogue, alone on its reference type, by number from 1."""
    traits = catalogue().traits([REFERENCE_TYPE])[1:, 0]
    return tuple(traits["util_frac"].tolist())


def demand_asked(message: Submit | DryRun) -> Demand:
    """The same of a submission, or of one that is only thought of."""
    return Demand(
        gpus=message.num_gpus,
        gpu_types=tuple(types_asked(message.gpu_types)),
        cpu_milli=message.num_cpus * 1000,
        memory_mib=message.memory_mib,
        gpu_memory_mib=message.gpu_memory_mib,
    )


def types_asked(gpu_types: Sequence[str]) -> list[str]:
    """GPU types as the ledger has them, by name and each once: as the table spells those that it knows."""
    return sorted({asked_type(one) for one in gpu_types})


def on_a_rank(demand: Demand, gpus: int, cpu_milli_each: int = -1) -> tuple[int, int]:
    """(cores, MiB of memory) of a rank with so many of a gang's GPUs; cores are whole ones.

    `cpu_milli_each`: cores with each GPU that were decided on; -1: those that it asked for.
    """
    cpu_milli_each = demand.cpu_milli_each if cpu_milli_each < 0 else cpu_milli_each
    return -(-cpu_milli_each * gpus // 1000), demand.memory_mib_each * gpus


def beside_gpus(demand: Demand) -> str:
    """Cores and memory of a job in words, "" where it asks for none."""
    cores = -(-demand.cpu_milli // 1000)
    found = [f"{cores} core{'' if cores == 1 else 's'}"] if cores else []
    found += [f"{memory(demand.memory_mib)} of memory"] if demand.memory_mib else []
    return " and ".join(found)


def of_types(demand: Demand) -> str:
    """`A100 or H100`, "" where any type will do."""
    return " or ".join(demand.gpu_types)


def beside_count(demand: Demand) -> str:
    """All that a job asks for beside a number of GPUs, in words; "" where it asks for nothing."""
    found = [beside_gpus(demand)] if demand.cpu_milli or demand.memory_mib else []
    kind = f" of type {of_types(demand)}" if demand.gpu_types else ""
    size = f" of {memory(demand.gpu_memory_mib)}" if demand.gpu_memory_mib else ""
    found += [f"GPUs{kind}{size}"] if kind or size else []
    return " and ".join(found)


def memory(mib: int) -> str:
    """MiB as people say it, never more than it is."""
    return f"{mib} MiB" if mib < 1024 else f"{mib * 10 // 1024 / 10:g} GiB"
