"""Requested resources of a job, as counted in the ledger (`ClusterState`) and as shown to users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, TypedDict

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.ledger_models import factors_of, traits_of, workload_number
from rlsched.broker.base.profiles import OF_PAIRS, WorkloadProfile, learnt_speeds
from rlsched.broker.state.jobs import Job
from rlsched.cluster.demand import ANY_TYPE, Demand
from rlsched.cluster.state import LearntUse
from rlsched.models.catalogue.table import REFERENCE_TYPE
from rlsched.models.gpu_types import asked_type
from rlsched.models.learning import POPULATION_SD
from rlsched.wire.messages import DryRun, Submit

HIGH_QUANTILE: Final = 2.33
"""99th percentile of the standard normal distribution."""
MOST_MIB: Final = 1 << 40
"""Upper limit of learnt memory, MiB; larger values are errors of measurement."""
CORE_HEADROOM: Final = 1.25
"""Cores that a job is assumed to need, divided by its mean use in earlier attempts. The surplus covers peaks,
and shows whether the job would use more cores.
"""
MOST_FOR_SPEED: Final = 0.1
"""Upper limit of the distance between learnt speeds and a workload's speeds (`_speed_distances`). The limit
is low, because GPU utilisations matter more than speeds: they determine how two jobs share a GPU.
"""
MOST_FOR_PAIRS: Final = POPULATION_SD
"""Upper limit of the distance between learnt factors of sharing and a workload's factors (`_pair_distances`).
The limit is the standard deviation of factors between workloads: a larger distance means that no workload
fits. In a comparison of limits from .1 to .6 and no limit, .6 gave nearly the lowest errors
(`studies/models/nearest_by_pairs.py`).
"""
MOST_RATIO: Final = 10.0
"""Upper limit of a job's learnt power, relative to the catalogue's power of the workload that models it. A
larger ratio is an error of measurement.
"""


class Sharing(TypedDict):
    """Arguments of `ClusterState.add_job` that concern the sharing of GPUs."""

    shares: bool
    gpu_need_mib: int


def demand_of(spec: JobSubmitted, learnt_gpu_mib: int = 0) -> Demand:
    """Return the demand of a job as the ledger counts it.

    The demand of a job from a journal older than version 7 (`counted` is False) includes no cores and no
    memory. `learnt_gpu_mib`: GPU memory that the job needs according to a failed attempt, MiB; 0: unknown.
    The demand includes the larger of this value and the requested GPU memory.
    """
    return Demand(
        gpus=spec.num_gpus,
        gpu_types=tuple(spec.gpu_types),
        cpu_milli=spec.num_cpus * 1000 if spec.counted else 0,
        memory_mib=spec.memory_mib if spec.counted else 0,
        gpu_memory_mib=max(spec.gpu_memory_mib, learnt_gpu_mib),
        gpu_free_mib=spec.gpu_memory_mib,
        exclusive=spec.exclusive,
        preferred_types=tuple(spec.preferred_types),
    )


def needs(job: Job) -> Demand:
    """Return a job's demand as the ledger counts it, including GPU memory learnt since its submission."""
    return demand_of(job.spec, job.gpu_memory_mib)


def sharing_of(spec: JobSubmitted, learnt_gpu_mib: int = 0, *, alone: bool = False) -> Sharing:
    """Return whether a job can share GPUs, and how much memory it needs on each GPU, MiB.

    The needed memory is the largest of the requested GPU memory, `learnt_gpu_mib`, and the memory that 99 %
    of similar jobs stay below. If all are unknown, it is -1, and the ledger uses the catalogue's value for
    the workload. A job with whole nodes never shares. With `share` set to `auto`, a job shares if the user
    named a workload, or if the needed memory and the GPU utilisation of similar jobs are known.

    `learnt_gpu_mib`: as in `demand_of`. `alone`: True if the job must not share, even if its submission
    permits it.
    """
    is_named = workload_number(spec.workload) > 0
    profiles = spec.profiles.values()
    need_mib = max(spec.gpu_memory_mib, learnt_gpu_mib, memory_bound_mib(spec.profiles)) or -1
    is_known = is_named or (need_mib > 0 and any(one.util_frac is not None for one in profiles))
    permitted = spec.share == "yes" or (spec.share == "auto" and is_known)
    return Sharing(shares=permitted and not (alone or spec.exclusive), gpu_need_mib=need_mib)


def memory_bound_mib(profiles: Mapping[str, WorkloadProfile]) -> int:
    """Return the GPU memory that 99 % of similar jobs stay below on each GPU, MiB; 0: unknown.

    The result is the largest value of all GPU types.

    Args:
        profiles: Profiles by GPU type.
    """
    found = (one.memory_mib for one in profiles.values() if one.memory_mib is not None)
    bounds = (one.value * math.exp(HIGH_QUANTILE * one.spread) for one in found)
    return math.ceil(min(max(bounds, default=0.0), MOST_MIB))


def learnt_use(profiles: Mapping[str, WorkloadProfile], workload: int) -> LearntUse:
    """Return the use of cores and power that was learnt from similar jobs.

    Each figure is from the GPU type on which most attempts were measured. The number of cores is the mean use
    of similar jobs, multiplied by `CORE_HEADROOM`.

    Args:
        profiles: Profiles by GPU type.
        workload: Catalogue index of the workload that models the job; 0: unknown.
    """
    cores = [one.cores_each for one in profiles.values() if one.cores_each is not None]
    need = max(cores, key=lambda one: one.count).value * CORE_HEADROOM if cores else 0.0
    watts = [(name, one.dynamic_w) for name, one in profiles.items() if one.dynamic_w is not None]
    ratio = 0.0
    if watts:
        gpu_type, found = max(watts, key=lambda one: one[1].count)
        ratio = min(max(found.value / _dynamic_w(gpu_type)[workload], 1.0 / MOST_RATIO), MOST_RATIO)
    return LearntUse(math.ceil(1000.0 * need), ratio)


def runs_as(spec: JobSubmitted) -> int:
    """Return the catalogue index, from 1, of the workload that models a job; 0: no workload is known.

    The user can name the workload. Otherwise, it is the workload with figures nearest to the measured figures
    of similar jobs.
    """
    return workload_number(spec.workload) or nearest_workload(spec.profiles)


def nearest_workload(profiles: Mapping[str, WorkloadProfile]) -> int:
    """Return the catalogue index, from 1, of the workload most similar to the jobs with these profiles.

    The result is 0 (unknown) if no profile has a GPU utilisation.

    Args:
        profiles: Profiles of similar jobs, by GPU type. GPU utilisation and clock-bound fraction are each
            from the type with the most observations.
    """
    seen = [one.util_frac for one in profiles.values() if one.util_frac is not None]
    if not seen:
        return 0
    bound = [one.clock_bound for one in profiles.values() if one.clock_bound is not None]
    return workload_like(
        max(seen, key=lambda one: one.count).value,
        max(bound, key=lambda one: one.count).value if bound else None,
        _summed(_speed_distances(profiles), _pair_distances(profiles)),
    )


def _summed(one: Sequence[float], other: Sequence[float]) -> Sequence[float]:
    """Return the sum of two lists of distances by workload. An empty list counts as zeros."""
    return [a + b for a, b in zip(one, other, strict=True)] if one and other else one or other


def _pair_distances(profiles: Mapping[str, WorkloadProfile]) -> Sequence[float]:
    """Return how much each workload's factors of sharing differ from learnt factors, in catalogue order.

    The factors are sensitivity (to co-tenants) and pressure (on co-tenants), each from the GPU type with the
    most observations. The difference is the mean of |ln(learnt factor / workload's factor)|, at most
    `MOST_FOR_PAIRS`. The result is empty if neither factor was learnt.
    """
    found: list[tuple[float, Sequence[float]]] = []
    for column, field in enumerate(OF_PAIRS):
        known = [(name, one) for name, profile in profiles.items() if (one := getattr(profile, field))]
        if known:
            gpu_type, best = max(known, key=lambda each: each[1].count)
            found.append((math.log(best.value), _ln_factors(gpu_type)[column]))
    return _mean_distances(found, len(found), MOST_FOR_PAIRS)


def _speed_distances(profiles: Mapping[str, WorkloadProfile]) -> Sequence[float]:
    """Return how much each workload's speeds on GPU types differ from learnt speeds, in catalogue order.

    Speeds are relative to the first GPU type with a learnt speed. The difference is the mean of |ln(learnt
    speed / workload's speed)| over the other types, at most `MOST_FOR_SPEED`. The result is empty if no speed
    was learnt.
    """
    speeds = learnt_speeds(profiles)
    columns = _ln_speeds(tuple(speeds)) if speeds else ()
    found = [(math.log(one.value), row) for one, row in zip(speeds.values(), columns, strict=True)]
    return _mean_distances(found, len(found) - 1, MOST_FOR_SPEED)


def _mean_distances(
    found: Sequence[tuple[float, Sequence[float]]], count: int, most: float
) -> Sequence[float]:
    """Return, for each workload in catalogue order, the mean distance of its figures from learnt figures.

    Args:
        found: For each figure: the logarithm of the learnt value, and the logarithm of each workload's value.
        count: Number by which the sum of the distances is divided.
        most: Upper limit of the result.
    """
    if not found:
        return ()
    total = [0.0] * len(found[0][1])
    for learnt, of_workloads in found:
        total = [so_far + abs(learnt - one) for so_far, one in zip(total, of_workloads, strict=True)]
    return [min(one / count, most) for one in total]


def workload_like(util_frac: float, clock_bound: float | None = None, distances: Sequence[float] = ()) -> int:
    """Return the catalogue index of the workload nearest to learnt figures; of several, the lowest.

    The distance of a workload is the difference of GPU utilisations, plus the difference of clock-bound
    fractions, plus the workload's element of `distances`.

    Args:
        util_frac: Learnt GPU utilisation: fraction of time in which the GPU works, 0 to 1.
        clock_bound: Fraction of the run time that depends on the SM clock; None: unknown.
        distances: Further distance of each workload, in catalogue order; empty: none.
    """
    off = [abs(one - util_frac) for one in _utils()]
    if distances:
        off = [one + more for one, more in zip(off, distances, strict=True)]
    if clock_bound is not None:
        off = [one + abs(bound - clock_bound) for one, bound in zip(off, _clock_bounds(), strict=True)]
    return 1 + off.index(min(off))


@cache
def _dynamic_w(gpu_type: str) -> tuple[float, ...]:
    """Return the dynamic power of workloads on a GPU type, W, by catalogue index (0: median of all)."""
    return tuple(traits_of(gpu_type)["dynamic_w"].tolist())


@cache
def _ln_speeds(gpu_types: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
    """Return a row per GPU type: for each workload, ln(its speed relative to the first type)."""
    columns = [traits_of(name)["speed"][1:].tolist() for name in gpu_types]
    return tuple(
        tuple(math.log(speed / base) for speed, base in zip(column, columns[0], strict=True))
        for column in columns
    )


@cache
def _ln_factors(gpu_type: str) -> tuple[tuple[float, ...], ...]:
    """Return ln(sensitivity) and ln(pressure) on a GPU type: two tuples, one value for each workload."""
    return tuple(tuple(map(math.log, column)) for column in zip(*factors_of(gpu_type), strict=True))


@cache
def _utils() -> tuple[float, ...]:
    """Return each workload's GPU utilisation without co-tenants on the reference type, in catalogue order."""
    return tuple(traits_of(REFERENCE_TYPE)["util_frac"][1:].tolist())


@cache
def _clock_bounds() -> tuple[float, ...]:
    """Return, for each workload, the fraction of its run time that depends on the SM clock.

    The fractions are for the reference GPU type, in catalogue order.
    """
    return tuple(traits_of(REFERENCE_TYPE)["clock_bound"][1:].tolist())


def demand_asked(message: Submit | DryRun) -> Demand:
    """Return the demand that a submission or a dry run requests."""
    return Demand(
        gpus=message.num_gpus,
        gpu_types=tuple(types_asked(message.gpu_types)),
        cpu_milli=message.num_cpus * 1000,
        memory_mib=message.memory_mib,
        gpu_memory_mib=message.gpu_memory_mib,
        exclusive=message.exclusive,
        preferred_types=tuple(types_asked(message.preferred_types)),
    )


def types_asked(gpu_types: Sequence[str]) -> list[str]:
    """Return GPU types as in the ledger: sorted, unique, and known types in the catalogue's spelling.

    The result is empty if `gpu_types` is empty or only the word `any`: the job accepts any type.
    """
    found = sorted({asked_type(one) for one in gpu_types})
    return [] if [one.lower() for one in found] == [ANY_TYPE] else found


def on_a_rank(demand: Demand, gpus: int, cpu_milli_each: int) -> tuple[int, int]:
    """Return (whole cores, MiB of memory) of a rank with `gpus` GPUs, without lent cores.

    `cpu_milli_each`: cores per GPU that the ledger counts for the job, thousandths.
    """
    return -(-cpu_milli_each * gpus // 1000), demand.memory_mib_each * gpus


def beside_gpus(demand: Demand) -> str:
    """Format the cores and memory that a job requests; "" if it requests neither."""
    cores = -(-demand.cpu_milli // 1000)
    found = [f"{cores} core{'' if cores == 1 else 's'}"] if cores else []
    found += [f"{memory(demand.memory_mib)} of memory"] if demand.memory_mib else []
    return " and ".join(found)


def of_types(demand: Demand) -> str:
    """Format the requested GPU types, such as `A100 or H100`; "" if the job accepts any type."""
    return " or ".join(demand.gpu_types)


def beside_count(demand: Demand) -> str:
    """Format the requested resources of a job except the number of GPUs; "" if only GPUs are requested."""
    found = [beside_gpus(demand)] if demand.cpu_milli or demand.memory_mib else []
    kind = f" of type {of_types(demand)}" if demand.gpu_types else ""
    size = f" of {memory(demand.gpu_memory_mib)}" if demand.gpu_memory_mib else ""
    found += [f"GPUs{kind}{size}"] if kind or size else []
    return " and ".join(found)


def memory(mib: int) -> str:
    """Format an amount of memory, given in MiB: `310 MiB`, or from 1024 MiB on `17.4 GiB`, rounded down."""
    return f"{mib} MiB" if mib < 1024 else f"{mib * 10 // 1024 / 10:g} GiB"
