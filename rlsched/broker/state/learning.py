"""Learns the resource use of jobs from ended attempts, and describes it for users."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rlsched.broker.base.profiles import Estimate, Profiles, WorkloadProfile, signature_of
from rlsched.broker.base.usage_words import memory, share
from rlsched.broker.state.job_requests import sharing_of
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.nodes import Node
from rlsched.models.at_clock import clock_bound_of, time_of_busy
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
from rlsched.wire.messages import GPU_OUT_OF_MEMORY, SeenUsage

MOST_BUSY_FRAC, MOST_BUSY_AT_CLOCK_FRAC = 0.9, 0.97
"""Highest GPU times (busy fractions) that show the effect of a clock: at the highest and at a lower clock."""
UNMET = 1.25
"""Assumed need of an attempt that ran out of GPU memory, relative to the larger of its observed memory and
the memory that was counted for it.
"""
LEAST_MEASURED_S = 20
"""Minimum measured time of a rank, seconds. In a shorter time, programs only load data and warm up."""


def learn(profiles: Profiles, job: Job, attempt: Attempt, nodes: Mapping[str, Node]) -> None:
    """Learn from the usage of an attempt, if all its ranks were on one GPU type and measured long enough.

    Each rank must be measured for at least `LEAST_MEASURED_S`. An attempt that shared GPUs is not used for
    figures that need GPUs without co-tenants, such as GPU time and power. The same holds for an attempt with
    a clock lowered by a power limit, and with lent cores, because the next attempt may have fewer cores. An
    attempt that ran out of GPU memory shows only that it needs more (`UNMET`), in any measured time.
    """
    types = {nodes[rank.node].spec.gpu_type for rank in attempt.ranks}
    used = [rank.usage for rank in attempt.ranks]
    gpus = sum(len(rank.gpus) for rank in attempt.ranks)
    if len(types) != 1 or not gpus:
        return
    signature, gpu_type = signature_of(job.spec.user, job.spec.command), types.pop()
    if any(rank.reason == GPU_OUT_OF_MEMORY for rank in attempt.ranks):
        known_mib = [sharing_of(job.spec, job.learnt_gpu_mib)["gpu_need_mib"], 0]
        known_mib += [one.gpu_memory_mib or 0 for one in used if one is not None]
        profiles.observe(signature, gpu_type, {"memory_mib": UNMET * max(known_mib)} if max(known_mib) else {})
        return
    if any(one is None or one.measured_s < LEAST_MEASURED_S for one in used):
        return
    seen: dict[str, float] = {}
    pairs = [(len(rank.gpus), rank.usage) for rank in attempt.ranks if rank.usage is not None]
    is_steady = not (attempt.was_shared or attempt.was_capped or attempt.was_lent)
    if is_steady and all(usage.gpu_milli is not None for _, usage in pairs):
        seen["util_frac"] = sum(count * (usage.gpu_milli or 0) for count, usage in pairs) / gpus / 1e3
        seen |= _at_clock(profiles, job, attempt, gpu_type, seen["util_frac"])
    if all(usage.gpu_memory_mib is not None for _, usage in pairs):
        seen["memory_mib"] = float(max(usage.gpu_memory_mib or 0 for _, usage in pairs))
    if all(usage.cpu_milli is not None for _, usage in pairs):
        seen["cores_each"] = sum(usage.cpu_milli or 0 for _, usage in pairs) / gpus / 1e3
    if all(usage.memory_mib is not None for _, usage in pairs):
        seen["host_mib"] = float(max(usage.memory_mib or 0 for _, usage in pairs))
    if is_steady and attempt.sm_clock_frac == 1.0 and all(usage.energy_mj is not None for _, usage in pairs):
        static_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value
        drawn_w = sum((usage.energy_mj or 0) / 1e3 / usage.measured_s for _, usage in pairs)
        seen["dynamic_w"] = max(drawn_w / gpus - static_w, 0.0)
    profiles.observe(signature, gpu_type, seen)


def _at_clock(
    profiles: Profiles, job: Job, attempt: Attempt, gpu_type: str, util_frac: float
) -> dict[str, float]:
    """Return the figure that an attempt shows: `full_util_frac` at the highest clock, else `clock_bound`.

    `util_frac`: GPU time of the attempt without co-tenants, 0 to 1. The result is empty if `clock_bound`
    cannot be computed.
    """
    if attempt.sm_clock_frac == 1.0:
        return {"full_util_frac": util_frac}
    full = profiles.figure(signature_of(job.spec.user, job.spec.command), gpu_type, "full_util_frac")
    time = clock_time(full, util_frac)
    return {} if time is None else {"clock_bound": clock_bound_of(time, attempt.sm_clock_frac)}


def clock_time(full: Estimate | None, util_frac: float) -> float | None:
    """Return the time for the same work at a lower clock, relative to the time at the highest clock.

    The result follows from the GPU time at both clocks; see `rlsched.models.at_clock.time_of_busy` for the
    formula and its assumption.

    Args:
        full: GPU time (fraction of time in which the GPU works) at the highest clock; None: unknown.
        util_frac: GPU time at the lower clock.

    Returns:
        The relative time; None if `full` is unknown, or if a GPU time is so high that the idle times are too
        short to compare.
    """
    if full is None or full.value > MOST_BUSY_FRAC or util_frac > MOST_BUSY_AT_CLOCK_FRAC:
        return None
    return time_of_busy(full.value, util_frac)


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
        gpu_type: GPU type on which the job runs; "" while the job waits. For "", the GPU type with the most
            attempts is described.
        seen: Observed use; None: unknown, or the job waits.
        gpus: Number of GPUs of the job.
        drawn_w: Observed mean power of each GPU, W, in an attempt from which power is learnt; None: unknown.
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


def _with_static(dynamic_w: Estimate | None, gpu_type: str) -> Estimate | None:
    """Return an estimate of dynamic power plus the static power of the GPU type; only the value changes."""
    if dynamic_w is None:
        return None
    static_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value
    return msgspec.structs.replace(dynamic_w, value=dynamic_w.value + static_w)


def _count(profile: WorkloadProfile) -> int:
    return max((one.count for one in profile.known_figures().values()), default=0)


def _part(name: str, expected: Estimate | None, said: object, seen: float | None) -> str:
    """Format one figure, such as `GPU 78 % (80 % seen)`; "" if none was expected."""
    assert callable(said)
    if expected is None:
        return ""
    return f"{name} {said(expected.value)}" + ("" if seen is None else f" ({said(seen)} seen)")
