"""The second half of a decision, compiled: the ways to start the chosen job."""

from __future__ import annotations

import math

from rlsched.cluster.arrays import MAX_TENANTS, SPREAD, StateArrays
from rlsched.cluster.placement import fits_slot, largest_hole, node_with
from rlsched.cluster.speed import gpu_kind
from rlsched.compile.jit import kernel
from rlsched.decide.clocks import clock_for
from rlsched.decide.constants import MODELLED, PREEMPTING
from rlsched.decide.options import job_energy_weight, policy_start
from rlsched.decide.plans.best import partner_of
from rlsched.decide.rows.arrays import WindowArrays, first_host, look_at, set_own, set_place, use_rows
from rlsched.decide.rows.columns import (
    ENERGY_WEIGHT,
    FEASIBLE,
    FREE,
    FREE_AFTER,
    HELD,
    IS_REFERENCE,
    IS_VARIANT,
    PREEMPTS,
    WAITED,
)
from rlsched.decide.rows.features import (
    TIME_SCALE,
    clock_columns,
    index_columns,
    own_columns,
    partition_columns,
    partner_columns,
    workload_columns,
)
from rlsched.decide.rows.reasons import LEGAL
from rlsched.decide.schema import MAX_VARIANTS, NUM_FEATURES
from rlsched.models.arrays import NUM_LEVELS


@kernel
def has_one_way(s: StateArrays, p: int, slot: int) -> bool:
    """Return whether there is only one place to start a job: the place that the placement rule chooses."""
    many = s.job.gpus[slot] > s.derived.part.node_size[p]
    return many or s.demand.plain[s.job.demand[slot]] == 0 or s.config[0].placement == SPREAD


@kernel
def num_variants(s: StateArrays, p: int, slot: int, now_s: float) -> int:
    """Return the number of rows of `variant_window` for a job that can start."""
    if MODELLED and s.config[0].modelled and s.job.gpus[slot] > 0:
        found = _num_clocks(s, slot) * (_num_places(s, p, slot) if fits_slot(s, p, slot) else 0)
        return found + (partner_of(s, p, slot, now_s) >= 0)
    return _num_places(s, p, slot)


@kernel
def _num_places(s: StateArrays, p: int, slot: int) -> int:
    """Return the number of places for a job that fits."""
    if has_one_way(s, p, slot):
        return 1
    found = 0
    for free in range(s.job.gpus[slot], s.derived.holes.shape[1]):
        found += s.derived.holes[p, free] > 0
    return min(found, MAX_VARIANTS)


@kernel
def _num_clocks(s: StateArrays, slot: int) -> int:
    """Return the number of SM clocks to choose from; 1 if energy has no weight for the job."""
    return NUM_LEVELS if job_energy_weight(s, slot) > 0.0 else 1


@kernel
def variant_window(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """Fill the window of the second half: the ways to start a job that can start.

    A gang on one node has a place for each number of free GPUs on nodes that hold it: the fullest three and
    the emptiest. A gang over several nodes, and a job that requests more than whole GPUs, has one place. If
    energy has a weight, each place has a row for every SM clock. With models, the last row shares the GPUs of
    a running job. The reference is best fit at the clock of `policy_start`, or sharing if nothing fits.
    """
    gpus, shared, demand, work = s.job.gpus[slot], w.shared, 0, 0.0
    for position in range(s.derived.part.queue_len[p]):
        at = own_columns(s.job, s.derived.queue[p, position], w.own)
        demand += w.own.gpus[at]
        work += w.own.predicted_gpu_s[at]
    for column in range(NUM_FEATURES):
        shared[column] = 0.0
    partition_columns(s, p, demand, work, shared)
    shared[IS_VARIANT] = 1.0
    shared[PREEMPTS] = 1.0 if PREEMPTING and s.config[0].preempts else 0.0
    w.info[0], w.info[1], w.info[2] = 0, 0, -1
    modelled = s.config[0].modelled != 0
    if MODELLED and modelled:
        shared[ENERGY_WEIGHT] = job_energy_weight(s, slot)
    if not MODELLED or not modelled or fits_slot(s, p, slot):
        if has_one_way(s, p, slot):
            _add_variants(s, p, slot, first_host(s, p, slot), now_s, w)
        else:
            emptiest, places = largest_hole(s, p), 0
            for free in range(gpus, emptiest + 1):
                if s.derived.holes[p, free] > 0 and (places < MAX_VARIANTS - 1 or free == emptiest):
                    _add_variants(s, p, slot, node_with(s, p, free), now_s, w)
                    places += 1
    if MODELLED and modelled and gpus > 0:
        _add_sharing(s, p, slot, now_s, w)
    use_rows(w, w.info[0])
    w.features[w.info[1], IS_REFERENCE] = 1.0


@kernel
def _add_variants(s: StateArrays, p: int, slot: int, node: int, now_s: float, w: WindowArrays) -> None:
    """Add a row for each clock of the job on this node; on the first node, also mark the reference's row."""
    first = w.info[0] == 0
    if not MODELLED or not s.config[0].modelled or s.job.gpus[slot] == 0:
        _add_variant(s, p, slot, node, 1.0, -1, now_s, w)
        return
    kind, clocks = s.derived.part.kind[p], _num_clocks(s, slot)
    if node >= 0 and s.models.gpu.sliced[s.node.kind[node]]:
        kind, clocks = s.node.kind[node], 1
    clock = clock_for(s, p, slot, kind, policy_start(s))
    if node >= 0 and s.node.fixed_clock[node]:
        clock, clocks = 1.0, 1
    for level in range(clocks):
        x = s.models.gpu.levels_frac[kind, level]
        if first and x == clock:
            w.info[1] = w.info[0]
        _add_variant(s, p, slot, node, x, -1, now_s, w)


@kernel
def _add_sharing(s: StateArrays, p: int, slot: int, now_s: float, w: WindowArrays) -> None:
    """Add a row for sharing the GPUs of a running job, if the waiting job can share them."""
    partner = partner_of(s, p, slot, now_s)
    if partner >= 0:
        kind = gpu_kind(s, s.job.head[partner] // MAX_TENANTS)
        clock = clock_for(s, p, slot, kind, policy_start(s))
        _add_variant(s, p, slot, s.job.host[partner], clock, partner, now_s, w)


@kernel
def _add_variant(
    s: StateArrays, p: int, slot: int, node: int, clock: float, partner: int, now_s: float, w: WindowArrays
) -> None:
    at, row = w.info[0], w.features[w.info[0]]
    mine = own_columns(s.job, slot, w.own)
    for column in range(NUM_FEATURES):
        row[column] = w.shared[column]
    set_own(s, p, mine, w.own, row)
    row[WAITED] = math.log1p(max(now_s - s.job.submit_s[slot], 0.0)) / TIME_SCALE
    held_s = now_s - s.job.held_since_s[slot]
    row[HELD] = math.log1p(held_s) / TIME_SCALE if held_s == held_s else 0.0
    if MODELLED and s.config[0].modelled:
        workload_columns(s, p, slot, row)
    if PREEMPTING and row[PREEMPTS] > 0.0:
        index_columns(s, slot, now_s, row)
    if MODELLED and partner >= 0:
        row[FEASIBLE], row[FREE_AFTER] = 1.0, w.shared[FREE]
        partner_columns(s, slot, partner, now_s, row)
    else:
        look_at(s, node, w.own.gpus[mine], now_s, w.places, 0)
        set_place(s, p, w.own.gpus[mine], 0, w.places, row)
    if MODELLED and s.config[0].modelled and s.job.gpus[slot] > 0:
        clock_columns(s, p, slot, clock, row)
    w.slot[at], w.node[at], w.reason[at] = slot, node, LEGAL
    w.clock[at], w.partner[at], w.out[at] = clock, partner, -1
    w.info[0] = at + 1
