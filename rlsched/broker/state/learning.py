"""Learns the resource use of jobs from ended attempts, and their factors of sharing from observed pairs.

The *GPU utilisation* of a job is the fraction of time in which a GPU works for the job, as NVML measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rlsched.broker.base.entries import PairSeen
from rlsched.broker.base.ledger_models import factors_of, workload_number
from rlsched.broker.base.profiles import Estimate, Profiles, signature_of
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.nodes import Node
from rlsched.models.at_clock import clock_bound_of, time_of_busy
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
from rlsched.models.learning import seen_factor
from rlsched.wire.messages import GPU_OUT_OF_MEMORY

MOST_BUSY_FRAC, MOST_BUSY_AT_CLOCK_FRAC = 0.9, 0.97
"""Highest GPU utilisations at the highest clock and at a lower clock from which a speed is computed. Above
them, idle times are too short to show the effect of the clock."""
UNMET = 1.25
"""Assumed GPU memory need of an attempt that ran out of GPU memory, as a multiple of its measured use."""
LEAST_SOLO_FRAC: Final = 0.05
"""Minimum GPU utilisation (0 to 1) of a command without co-tenants. Below it, no speed is computed, because
readings have steps of 1 %.
"""
LEAST_MEASURED_S = 20
"""Minimum measured time of a rank, seconds. In a shorter time, programs only load data and warm up."""


def learn(
    profiles: Profiles, job: Job, attempt: Attempt, nodes: Mapping[str, Node], *, has_completed: bool
) -> None:
    """Learn from the usage of an attempt, if all its ranks were on one GPU type and measured long enough.

    Each rank must be measured for at least `LEAST_MEASURED_S`. GPU utilisation, power and run time are not
    learnt if the attempt shared GPUs, got lent cores, or ran at a clock lowered by a limit. From an attempt
    that ran out of GPU memory, only the memory need is learnt, even if its measured time is shorter.
    """
    types = {nodes[rank.node].spec.gpu_type for rank in attempt.ranks}
    used = [rank.usage for rank in attempt.ranks]
    if len(types) != 1 or not any(rank.gpus for rank in attempt.ranks):
        return
    gpu_type = types.pop()
    if any(rank.reason == GPU_OUT_OF_MEMORY for rank in attempt.ranks):
        seen = _unmet_memory(attempt, nodes)
        known = profiles.figure(signature_of(job.spec.user, job.spec.command), gpu_type, "memory_mib")
        if known is not None and known.value >= seen.get("memory_mib", 0.0):
            return  # it shows only a lower bound
    elif any(one is None or one.measured_s < LEAST_MEASURED_S for one in used):
        return
    else:
        seen = _measured(profiles, job, attempt, gpu_type)
        is_whole_job = has_completed and not job.earlier_s and attempt.run_s >= LEAST_MEASURED_S
        if is_whole_job and _is_steady(attempt) and attempt.sm_clock_frac == 1.0:
            seen["run_s"] = attempt.run_s
    signature = signature_of(job.spec.user, job.spec.command)
    profiles.observe(signature, gpu_type, seen, num_gpus=job.spec.num_gpus)


def learn_pair(profiles: Profiles, seen: PairSeen, job: Job, co_tenant: Job) -> None:
    """Learn from the observed speed of a job next to its only co-tenant.

    The speed depends on the product of the job's sensitivity and the co-tenant's pressure. The sensitivity
    is learnt with the catalogue's pressure, and the pressure with the catalogue's sensitivity.
    """
    mine, theirs = workload_number(seen.workload), workload_number(seen.partner)
    if mine <= 0 or theirs <= 0:
        return  # a later version's catalogue
    factors = factors_of(seen.gpu_type)
    sensitivity, pressure = factors[mine - 1][0], factors[theirs - 1][1]
    for one, field, other in ((job, "sensitivity", pressure), (co_tenant, "pressure", sensitivity)):
        signature = signature_of(one.spec.user, one.spec.command)
        profiles.observe(signature, seen.gpu_type, {field: seen_factor(seen.speed, other)})


def _is_steady(attempt: Attempt) -> bool:
    return not (attempt.was_shared or attempt.was_capped or attempt.was_lent)


def _unmet_memory(attempt: Attempt, nodes: Mapping[str, Node]) -> dict[str, float]:
    """Return `memory_mib` for an attempt that ran out of GPU memory: the assumed need, not the measured use.

    The need is `UNMET` times the measured use, at most the memory of the GPUs if that is known. The dict is
    empty if no use was measured.
    """
    used = [rank.usage.gpu_memory_mib or 0 for rank in attempt.ranks if rank.usage is not None]
    most_mib = min(nodes[rank.node].spec.capabilities.gpu_memory_mib for rank in attempt.ranks) or math.inf
    return {"memory_mib": min(UNMET * max(used), most_mib)} if any(used) else {}


def _measured(profiles: Profiles, job: Job, attempt: Attempt, gpu_type: str) -> dict[str, float]:
    """Return the figures that nodes have measured in an attempt: field of `WorkloadProfile` -> value."""
    gpus = sum(len(rank.gpus) for rank in attempt.ranks)
    pairs = [(len(rank.gpus), rank.usage) for rank in attempt.ranks if rank.usage is not None]
    seen: dict[str, float] = {}
    if _is_steady(attempt) and all(usage.gpu_milli is not None for _, usage in pairs):
        seen["util_frac"] = sum(count * (usage.gpu_milli or 0) for count, usage in pairs) / gpus / 1e3
        seen |= _at_clock(profiles, job, attempt, gpu_type, seen["util_frac"])
    if all(usage.gpu_memory_mib is not None for _, usage in pairs):
        seen["memory_mib"] = float(max(usage.gpu_memory_mib or 0 for _, usage in pairs))
    if all(usage.cpu_milli is not None for _, usage in pairs):
        seen["cores_each"] = sum(usage.cpu_milli or 0 for _, usage in pairs) / gpus / 1e3
    if all(usage.memory_mib is not None for _, usage in pairs):
        seen["host_mib"] = float(max(usage.memory_mib or 0 for _, usage in pairs))
    at_full_clock = _is_steady(attempt) and attempt.sm_clock_frac == 1.0
    if at_full_clock and all(usage.energy_mj is not None for _, usage in pairs):
        static_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value
        drawn_w = sum((usage.energy_mj or 0) / 1e3 / usage.measured_s for _, usage in pairs)
        seen["dynamic_w"] = max(drawn_w / gpus - static_w, 0.0)
    return seen


def _at_clock(
    profiles: Profiles, job: Job, attempt: Attempt, gpu_type: str, util_frac: float
) -> dict[str, float]:
    """Return what an attempt without co-tenants shows about the effect of the clock: {field: value}.

    At the highest clock, the field is `full_util_frac`, with the value `util_frac`. At a lower clock, the
    field is `clock_bound` (fraction of the run time that depends on the clock); the dict is empty if it
    cannot be computed. `util_frac`: GPU utilisation of the attempt, 0 to 1.
    """
    if attempt.sm_clock_frac == 1.0:
        return {"full_util_frac": util_frac}
    full = profiles.figure(signature_of(job.spec.user, job.spec.command), gpu_type, "full_util_frac")
    time = clock_time(full, util_frac)
    return {} if time is None else {"clock_bound": clock_bound_of(time, attempt.sm_clock_frac)}


def solo_frac(profiles: Profiles, job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> Estimate | None:
    """Return the GPU utilisation (0 to 1) of the job's command in earlier runs without co-tenants.

    The result is None if this figure is unknown or less than `LEAST_SOLO_FRAC`. The result is also None if
    the attempt's clock is or was below the highest, if the attempt got lent cores, or if its GPUs are of
    several types.
    """
    solo = _full_frac(profiles, job, attempt, nodes) if attempt.sm_clock_frac == 1.0 else None
    return None if solo is None or solo.value < LEAST_SOLO_FRAC else solo


def _full_frac(profiles: Profiles, job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> Estimate | None:
    types = {nodes[rank.node].spec.gpu_type for rank in attempt.ranks}
    if len(types) != 1 or attempt.was_capped or attempt.was_lent:
        return None
    return profiles.figure(signature_of(job.spec.user, job.spec.command), types.pop(), "full_util_frac")


def mean_speed(profiles: Profiles, job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> float | None:
    """Return the mean speed of an ended attempt; 1: at the highest clock without co-tenants.

    With co-tenants, the speed is the GPU utilisation of the job's own processes divided by the utilisation of
    earlier runs without co-tenants, as in `SeenSpeeds`. At a lower clock, the speed is computed from the
    utilisations at both clocks (`clock_time`).

    Returns:
        The speed. None if a rank was not measured long enough, or if the utilisation of earlier runs is
        unknown. Also None if the attempt had both co-tenants and a lower clock. Also None if it had
        neither, because its speed is then 1 by definition.
    """
    gpus, busy = sum(len(rank.gpus) for rank in attempt.ranks), 0.0
    if attempt.was_shared == (attempt.sm_clock_frac < 1.0) or not gpus:
        return None
    for rank in attempt.ranks:
        usage = rank.usage
        if usage is None or usage.gpu_milli is None or usage.measured_s < LEAST_MEASURED_S:
            return None
        if attempt.was_shared and usage.shared_gpu_milli is None:
            return None
        busy += len(rank.gpus) / gpus * usage.gpu_milli / 1e3
    if attempt.was_shared:
        solo = solo_frac(profiles, job, attempt, nodes)
        return None if solo is None else busy / solo.value
    time = clock_time(_full_frac(profiles, job, attempt, nodes), busy)
    return None if time is None else 1.0 / time


def clock_time(full: Estimate | None, util_frac: float) -> float | None:
    """Return the time for the same work at a lower clock, relative to the time at the highest clock.

    `rlsched.models.at_clock.time_of_busy` gives the formula and its assumption.

    Args:
        full: GPU utilisation (0 to 1) at the highest clock; None: unknown.
        util_frac: GPU utilisation at the lower clock.

    Returns:
        The relative time. None if `full` is unknown, or above `MOST_BUSY_FRAC`, or if `util_frac` is above
        `MOST_BUSY_AT_CLOCK_FRAC`.
    """
    if full is None or full.value > MOST_BUSY_FRAC or util_frac > MOST_BUSY_AT_CLOCK_FRAC:
        return None
    return time_of_busy(full.value, util_frac)
