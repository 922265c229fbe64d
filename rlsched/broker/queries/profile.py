"""The profile of a job: expected figures of its resource use with their sources, and observed figures.

A figure is one number of a profile, such as the GPU time (`util_frac`) or the memory on each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rlsched.broker.base.ledger_models import factors_of, traits_of, workload_name
from rlsched.broker.base.profiles import (
    ATTEMPT_SPREAD,
    OF_PAIRS,
    Estimate,
    WorkloadProfile,
    learnt_speeds,
)
from rlsched.broker.base.usage_words import memory, share
from rlsched.broker.nodes.seen_speed import SeenSpeeds
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import runs_as
from rlsched.broker.state.jobs import Job
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
from rlsched.models.learning import INTRODUCED_SD, POPULATION, POPULATION_SD, seen_factor
from rlsched.wire.messages import ProfileFigure, SeenUsage

OF_CATALOGUE: Final = ("util_frac", "memory_mib", "clock_bound", "dynamic_w", "cores_each", "node_penalty")
"""Figures of a profile that are columns of the catalogue, except speeds, sensitivity and pressure."""


class PairSpeeds(NamedTuple):
    """Observed speeds of a running job and of its only co-tenant, relative to speeds without co-tenants.

    Attributes:
        own: Speed of the job; None: unknown.
        co_tenant: Speed of its co-tenant; None: unknown.
    """

    own: float | None = None
    co_tenant: float | None = None

    @classmethod
    def of(cls, state: BrokerState, speeds: SeenSpeeds, job: Job, now_s: float) -> PairSpeeds:
        """Return the speeds of a job and its co-tenant; both are None without exactly one co-tenant."""
        others = state.cluster.beside(job.seq) if job.active is not None else ()
        if len(others) != 1:
            return cls()
        return cls(speeds.mean_frac(job, now_s), speeds.mean_frac(state.job_of_seq[others[0]], now_s))


NO_SPEEDS: Final = PairSpeeds()


def figures_of(
    state: BrokerState, job: Job, usage: SeenUsage | None, speeds: PairSpeeds = NO_SPEEDS
) -> list[ProfileFigure]:
    """Return the expected figures of a job, each from the most certain source, and the observed values.

    The figures are for the GPU type on which the job runs or ran last; else for the type with the most
    earlier attempts; else for the type of the first node. There are two exceptions. `speed` is given for each
    GPU type of the cluster, relative to the catalogue's reference type. `scaling` is given for each GPU count
    with a learnt speed. The result is empty without nodes.

    Args:
        state: State of the broker.
        job: The job.
        usage: Resource use in the present or last attempt; None: not measured.
        speeds: Observed speeds of the job and of its co-tenant.
    """
    types = list(dict.fromkeys(node.spec.gpu_type for node in state.nodes.values() if node.spec.gpus))
    if not types:
        return []
    gpu_type, number = _type_of(state, job) or types[0], runs_as(job.spec)
    profile = job.spec.profiles.get(gpu_type, WorkloadProfile())
    learnt, seen = profile.known_figures(), _seen(job, usage) | _seen_factors(state, job, gpu_type, speeds)
    found = []
    for field in OF_CATALOGUE:
        estimate = learnt.get(field) or _from_catalogue(job, number, gpu_type, field)
        if field == "memory_mib" and job.seen_gpu_mib:
            mib = float(job.seen_gpu_mib)
            estimate = Estimate(mib, ATTEMPT_SPREAD, 1, "measured", "more than was counted for this job")
        found.append((field, gpu_type, estimate))
    found += [(field, gpu_type, one) for field, one in _factors(state, job, number, gpu_type)]
    found += [("speed", name, one) for name, one in _speeds(job, number, types)]
    figures = [_figure(field, kind, one, seen.get(field)) for field, kind, one in found]
    return figures + [_figure("scaling", gpu_type, one, None, gpus) for gpus, one in profile.scaling.items()]


def _figure(
    field: str, gpu_type: str, one: Estimate, seen: float | None, num_gpus: int | None = None
) -> ProfileFigure:
    return ProfileFigure(
        field=field,
        gpu_type=gpu_type,
        value=one.value,
        spread=one.spread,
        status=one.status,
        source=one.source,
        count=one.count,
        seen=seen,
        num_gpus=num_gpus,
    )


def _type_of(state: BrokerState, job: Job) -> str:
    """Return the GPU type that a job uses or used last, else the one with most earlier attempts, else ""."""
    ran_on = [state.nodes[rank.node].spec.gpu_type for rank in job.attempt.ranks] if job.attempt else []
    if ran_on:
        return ran_on[0]
    return max(job.spec.profiles, key=lambda name: _count(job.spec.profiles[name]), default="")


def _seen(job: Job, usage: SeenUsage | None) -> dict[str, float]:
    """Return the observed figures of an attempt, by field. GPU time is left out if there were co-tenants."""
    if usage is None or job.attempt is None:
        return {}
    gpus = job.spec.num_gpus
    told = {
        "util_frac": None if job.attempt.was_shared else usage.gpu_frac,
        "memory_mib": usage.gpu_memory_mib,
        "cores_each": usage.cores / gpus if usage.cores is not None and gpus else None,
    }
    return {field: float(value) for field, value in told.items() if value is not None}


def _seen_factors(state: BrokerState, job: Job, gpu_type: str, speeds: PairSpeeds) -> dict[str, float]:
    """Return the observed sensitivity and pressure of a job that has exactly one co-tenant, by field.

    They are computed from the observed speeds of both jobs, and from the catalogue's factors of the workload
    that models the co-tenant.
    """
    if speeds == NO_SPEEDS:
        return {}
    (other,) = state.cluster.beside(job.seq)
    theirs = int(state.cluster.arrays.job.workload[state.cluster.slot_of(other)])
    if theirs <= 0:
        return {}
    sensitivity, pressure = factors_of(gpu_type)[theirs - 1]
    found = (("sensitivity", speeds.own, pressure), ("pressure", speeds.co_tenant, sensitivity))
    return {field: seen_factor(speed, factor) for field, speed, factor in found if speed}


def _from_catalogue(job: Job, number: int, gpu_type: str, field: str) -> Estimate:
    """Return the catalogue's value of the figure `field` for workload `number` on a GPU type.

    For `number` 0 (workload unknown), it is the median of all workloads.
    """
    value, spread = float(traits_of(gpu_type)[field][number]), _spread(gpu_type, field)
    if not number:
        return Estimate(value, spread, 0, "median", "median of the catalogue's workloads")
    name = workload_name(number)
    if job.spec.workload:
        return Estimate(value, spread, 0, "named", f"workload {name}")
    return Estimate(value, spread, 0, "estimated", f"workload {name}, nearest to the learnt figures")


@cache
def _spread(gpu_type: str, field: str) -> float:
    """Return the standard deviation of ln(value) of the figure `field` over the catalogue's workloads.

    Workloads with the value 0 are left out.
    """
    values = np.asarray(traits_of(gpu_type)[field][1:], np.float64)
    return float(np.log(values[values > 0.0]).std())


def _factors(state: BrokerState, job: Job, number: int, gpu_type: str) -> Iterator[tuple[str, Estimate]]:
    """Yield the sensitivity and pressure of a job, each from the most certain source.

    The sources, in this order, are figures learnt for the job's signature, figures learnt for its workload,
    the catalogue's figures of its workload, and the figures of all workloads.
    """
    name, own = workload_name(number), job.spec.profiles.get(gpu_type, WorkloadProfile()).known_figures()
    for field, population in zip(("sensitivity", "pressure"), POPULATION, strict=True):
        if field in own:
            yield field, own[field]
            continue
        one = Estimate(population, POPULATION_SD, 0, "median", "all fits to measured pairs")
        if not math.isnan(traits_of(gpu_type)[field][number]):
            one = _from_catalogue(job, number, gpu_type, field)
            one = msgspec.structs.replace(one, spread=INTRODUCED_SD)
        learnt, count = state.models.pairs.factor(gpu_type, name, suffers=field == "sensitivity")
        if learnt is not None:
            source = f"workload {name} next to {count} observed co-tenants"
            one = Estimate(one.value * learnt.factor, learnt.sd, count, "learnt", source)
        yield field, one


def _speeds(job: Job, number: int, types: list[str]) -> Iterator[tuple[str, Estimate]]:
    """Yield the speed on each GPU type relative to the catalogue's reference type.

    A learnt speed is relative to the GPU type with the most completed jobs. It is therefore multiplied by
    the catalogue's speed of that type. For types without a learnt speed, the speed is the catalogue's.
    """
    learnt = learnt_speeds(job.spec.profiles)
    base = next(iter(learnt), "")
    for name in types:
        if name in learnt and name != base:
            value = learnt[name].value * float(traits_of(base)["speed"][number])
            yield name, msgspec.structs.replace(learnt[name], value=value)
        else:
            yield name, _from_catalogue(job, number, name, "speed")


def without_attempts(state: BrokerState, job: Job, figures: Sequence[ProfileFigure]) -> list[str]:
    """Describe the GPU time and GPU memory with which the ledger counts a job without earlier attempts.

    The result is empty if the broker lets no jobs share GPUs, or if the job has finished.
    """
    known = {one.field: one for one in figures if one.field in ("util_frac", "memory_mib")}
    if not (state.models.shares and job.live and known and job.spec.num_gpus):
        return []
    gpu, gpu_memory = known["util_frac"], known["memory_mib"]
    told = f"GPU {share(gpu.value)} and GPU memory {memory(gpu_memory.value)} ({gpu.source})"
    need_mib = int(state.cluster.arrays.job.gpu_need_mib[state.cluster.slot_of(job.seq)])
    if need_mib >= 0:
        told = f"GPU {share(gpu.value)} ({gpu.source}) and GPU memory {memory(need_mib)}"
        told += " (seen)" if job.seen_gpu_mib == need_mib else " (requested)"
    return [f"no earlier attempt of its command is known; it counts with {told}"]


def in_words(
    profiles: Mapping[str, WorkloadProfile],
    gpu_type: str,
    seen: SeenUsage | None,
    gpus: int,
    drawn_w: float | None = None,
) -> str:
    """Describe the resource use that was expected at a job's submission, and the observed use.

    The text is "" if no resource use was learnt from earlier jobs.

    Args:
        profiles: Profiles at the job's submission, by GPU type.
        gpu_type: GPU type on which the job runs; "": the job waits, and the GPU type with the most attempts
            is described.
        seen: Observed use; None: unknown.
        gpus: Number of GPUs of the job.
        drawn_w: Observed mean power per GPU, W; None: it cannot be compared with learnt power.
    """
    if not gpu_type and profiles:
        gpu_type = max(profiles, key=lambda name: _count(profiles[name]))
    found = profiles.get(gpu_type)
    if found is None:
        return ""
    cores = None if seen is None or seen.cores is None or not gpus else seen.cores / gpus
    host_mib = None if seen is None else seen.memory_mib
    parts = [
        _part("GPU", found.util_frac, share, None if seen is None else seen.gpu_frac),
        _part("GPU memory", found.memory_mib, memory, None if seen is None else seen.gpu_memory_mib),
        _part("cores a GPU", found.cores_each, "{:.1f}".format, cores),
        _part("memory", found.host_mib, memory, host_mib),
        _part("power a GPU", _with_static(found.dynamic_w, gpu_type), "{:.0f} W".format, drawn_w),
    ]
    told = ", ".join(part for part in parts if part)
    count = _count(found)
    attempts = "an earlier attempt" if count == 1 else f"{count} earlier attempts"
    return f"by {attempts} of the same command on {gpu_type} it was expected to use: {told}" if told else ""


def learnt_lines(figures: Sequence[ProfileFigure]) -> list[str]:
    """Describe a job's learnt sensitivity and pressure, and its learnt speeds by number of GPUs."""
    lines = []
    pairs = [one for one in figures if one.field in OF_PAIRS and one.status == "learnt"]
    if pairs:
        told = ", ".join(
            f"{one.field} {one.value:.2f}"
            + ("" if one.seen is None else f" ({one.seen:.2f} seen)")
            + f" from {one.source}"
            for one in pairs
        )
        lines.append(f"next to a co-tenant on {pairs[0].gpu_type} it is expected to have: {told}")
    scaling = [one for one in figures if one.field == "scaling"]
    if scaling:
        base, *others = scaling
        told = ", ".join(f"{one.value:.2f} with {_gpus(one.num_gpus)}" for one in others)
        lines.append(
            f"its speed by run times of its command on {base.gpu_type}, relative to {_gpus(base.num_gpus)}: "
            f"{told}"
        )
    return lines


def _gpus(number: int | None) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def _with_static(dynamic_w: Estimate | None, gpu_type: str) -> Estimate | None:
    """Return the estimate of a GPU's total power: the estimate of dynamic power plus the static power."""
    if dynamic_w is None:
        return None
    static_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value
    return msgspec.structs.replace(dynamic_w, value=dynamic_w.value + static_w)


def _count(profile: WorkloadProfile) -> int:
    known = profile.known_figures().items()
    return max((one.count for field, one in known if field not in OF_PAIRS), default=0)


def _part(name: str, expected: Estimate | None, said: object, seen: float | None) -> str:
    """Format an expected value and, in brackets, the observed one, such as `GPU 78 % (80 % seen)`.

    The text is "" if there is no expected value.
    """
    assert callable(said)
    if expected is None:
        return ""
    return f"{name} {said(expected.value)}" + ("" if seen is None else f" ({said(seen)} seen)")
