"""Compiled functions that use models to choose the SM clock and the CPU cores of a job before it starts."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CLOCKS_ALONE, MAX_TENANTS, UNCOUNTED, StateArrays
from rlsched.cluster.kernels import spare_cpu_milli, spare_cpu_milli_each
from rlsched.cluster.loans import loan_milli_each, usable_milli
from rlsched.cluster.speed import dynamic_w, gpu_kind
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import FIXED, FULL, LULL, WEIGHED, StartOptions, energy_weight
from rlsched.models.clocks import best_level, power_at, priced_level

MOST_PRESSURE: Final = 3.0
"""Queued jobs per node above which the weight of time does not rise further."""


@kernel
def can_set_clocks(s: StateArrays, gpus: NDArray[np.int32]) -> bool:
    """Return whether the SM clocks of all these GPUs can be set."""
    fixed = 0
    for position in range(gpus.shape[0]):
        fixed += s.node.fixed_clock[s.gpu.node[gpus[position]]]
    return fixed == 0


@kernel
def clock_on(s: StateArrays, p: int, slot: int, gpus: NDArray[np.int32], o: StartOptions) -> float:
    """Return the SM clock of a job on these GPUs of partition `p`, as a fraction of the maximum.

    Returns 1 without models, or if the clock of one of the GPUs cannot be set.
    """
    if not MODELLED or gpus.shape[0] == 0 or not can_set_clocks(s, gpus):
        return 1.0
    return clock_for(s, p, slot, gpu_kind(s, gpus[0]), o)


@kernel
def clock_for(s: StateArrays, p: int, slot: int, kind: int, o: StartOptions) -> float:
    """Return the SM clock that a rule gives a waiting job on GPUs of this type, as a fraction of the maximum.

    The energy weight of a job, if set, replaces the clock settings of the rule. If models are used only for
    clocks (`CLOCKS_ALONE`), a rule without clock settings uses the energy weight of the cluster.
    """
    if not MODELLED or not s.config[0].modelled or s.models.gpu.sliced[kind]:
        return 1.0
    rule, value = o.clock, o.clock_value
    if s.job.energy_ppm[slot] >= 0:
        rule, value = WEIGHED, s.job.energy_ppm[slot] / 1e6
    elif rule == FULL and s.config[0].modelled == CLOCKS_ALONE:
        rule, value = WEIGHED, energy_weight(s)
    if rule == FULL:
        return 1.0
    jobs = s.derived.part.queue_len[p]
    if rule == LULL and jobs > 1:
        return 1.0
    if rule == FIXED:
        return value
    rho, full_w = s.models.trait.clock_bound[s.job.workload[slot], kind], dynamic_w(s, slot, kind)
    if rule == WEIGHED:
        value = energy_weight(s) if value < 0.0 else value
        energy_factor = price_factor(s, o.price.power)
        level = weighed_level(s, p, kind, rho, full_w, value, jobs, energy_factor)
    else:
        level = best_level(s.models.gpu, kind, rho, full_w, value)
    return s.models.gpu.levels_frac[kind, level]


@kernel
def price_factor(s: StateArrays, power: float) -> float:
    """Return (electricity price / mean price)^power: the factor of the weight of energy against time.

    Returns 1 if no price is known.
    """
    ratio = s.config[0].price_ratio
    return ratio**power if ratio > 0.0 and power != 0.0 else 1.0


@kernel
def weighed_level(
    s: StateArrays,
    p: int,
    kind: int,
    clock_bound: float,
    dynamic_w: float,
    weight: float,
    jobs: int,
    energy_factor: float,
) -> int:
    """Return the index of the clock level with the least weighted cost of time and energy.

    `weight` is the weight of energy (0: the highest clock). Time and energy are relative to their values at
    full clock. The price of time rises with the number of waiting jobs, this job included, and falls as
    electricity gets more expensive (`energy_factor`, from `price_factor`).
    """
    if weight == 0.0:
        return 0
    queued = jobs / max(s.derived.part.open_nodes[p], 1)
    time_price = (1.0 - weight) * (1.0 + min(queued, MOST_PRESSURE)) * math.exp(s.dials.dial[p].gpu_price)
    time_price /= energy_factor
    full_w = power_at(s.models.gpu, kind, clock_bound, dynamic_w, 1.0)
    return priced_level(s.models.gpu, kind, clock_bound, dynamic_w, 0.0, time_price, weight / full_w)


@kernel
def cores_for(s: StateArrays, slot: int, gpus: NDArray[np.int32], o: StartOptions) -> int:
    """Return the CPU cores (thousandths) per GPU that a rule gives a job when it starts on these GPUs.

    If the option `cores` is off, the job gets the cores that it requested. If the option is on, the job gets
    the cores that it can use: fewer than requested if fewer suffice, more if its nodes have spare cores.

    Jobs that share GPUs can have taken cores that a free GPU would need. Therefore, a job of a plain class
    (`demand.plain_demands`) gets at most a proportional part of the free cores of a node that has too few
    for its free GPUs. A job of another class fits on a node only with all its cores, and gets these.

    If the cluster lends cores, the job gets the cores that it requested, and with the option `cores` a loan
    (`rlsched.cluster.loans`) if its workload is known and needs more.
    """
    asked = s.demand.cpu_milli_each[s.job.demand[slot]]
    if not MODELLED or asked == 0 or gpus.shape[0] == 0:
        return asked
    modelled, lends, wanted = s.config[0].modelled, s.config[0].lends_cores, asked
    varies = o.cores if lends else s.demand.plain[s.job.demand[slot]]
    if not modelled or modelled == CLOCKS_ALONE or not varies:
        return asked
    if o.cores:
        needed = 0.0
        for position in range(gpus.shape[0]):
            needed = max(needed, s.models.trait.cores_each[s.job.workload[slot], gpu_kind(s, gpus[position])])
        wanted = math.ceil(needed * 1000.0)
    if lends:
        return asked + loan_milli_each(s, slot, gpus, usable_milli(s, slot, wanted))
    position = 0
    while position < gpus.shape[0]:
        n, on_node = s.gpu.node[gpus[position]], 0
        while position < gpus.shape[0] and s.gpu.node[gpus[position]] == n:
            position, on_node = position + 1, on_node + 1
        if s.node.cpu_milli[n] < UNCOUNTED:
            part = min(asked, s.node.cpu_free_milli[n] // max(s.node.free[n], on_node))
            wanted = min(wanted, part + spare_cpu_milli(s, n) // on_node)
    return wanted


@kernel
def join_cores(s: StateArrays, slot: int, share_with: int, kind: int) -> int:
    """Return the CPU cores (thousandths) that a waiting job adds to each GPU that it shares.

    The job adds spare cores of the nodes, but no more than all jobs on the GPUs together lack. If the cluster
    lends cores, the job adds the cores that it requested.
    """
    job, cores = s.job, s.models.trait.cores_each
    asked = s.demand.cpu_milli_each[job.demand[slot]]
    if asked == 0 or s.config[0].lends_cores:
        return asked
    g, held, needed = job.head[share_with] // MAX_TENANTS, 0, cores[job.workload[slot], kind]
    for k in range(MAX_TENANTS):
        other = s.gpu.tenant[g, k]
        if other >= 0:
            held += job.cpu_milli_each[other]
            needed += cores[job.workload[other], kind]
    return max(min(math.ceil(1000.0 * needed) - held, spare_cpu_milli_each(s, share_with)), 0)
