"""Which GPU type a job had best start on where its partition has several, compiled.

A type is worth ln(speed of the job there), less a price times ln(speed of the usual workload there). At a
price of 0 that is fastest first. At 1 it is comparative advantage: fast GPUs go to the jobs that gain most by
them (Ricardo; as Gavel's policies do by optimisation: Narayanan et al., OSDI'20).
"""

from __future__ import annotations

import math

from rlsched.cluster.arrays import CLOCKS_ALONE, StateArrays
from rlsched.cluster.capacity import open_places
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import StartOptions
from rlsched.jit import kernel
from rlsched.models.speed import speed_alone


@kernel
def usual_speed_log(s: StateArrays, kind: int) -> float:
    """Mean ln(speed) of the workloads of the catalogue on GPUs of a type; 0 on the reference type."""
    speed, total = s.models.trait.speed, 0.0
    for w in range(1, speed.shape[0]):
        total += math.log(max(speed[w, kind], 1e-3))
    return total / max(speed.shape[0] - 1, 1)


@kernel
def type_value(s: StateArrays, slot: int, kind: int, price: float) -> float:
    """What GPUs of a type are worth to a waiting job, at this price."""
    value = math.log(max(speed_alone(s, slot, kind), 1e-6))
    return value - price * usual_speed_log(s, kind) if price != 0.0 else value


@kernel
def node_for(s: StateArrays, p: int, slot: int, o: StartOptions) -> int:
    """Node of partition `p` that a waiting job had best start on by its GPU type; of those of one type, the
    one with the fewest free GPUs. -1: that is left to the placement rule, as for a gang of several nodes.
    """
    if not MODELLED or not o.chooses_type or s.config[0].modelled in (0, CLOCKS_ALONE):
        return -1
    c, gpus = s.job.demand[slot], s.job.gpus[slot]
    if s.models.gpu.shape[0] < 2 or gpus == 0 or gpus > s.derived.class_queue.node_size[p, c]:
        return -1
    best, most, kind, value = -1, -math.inf, -1, 0.0
    for n in range(s.node.shape[0]):
        if open_places(s, c, p, n) < gpus:
            continue
        if s.node.kind[n] != kind:
            kind = s.node.kind[n]
            value = type_value(s, slot, kind, o.type_price + s.dials.dial[p].type_price)
        if value > most or (value == most and s.node.free[n] < s.node.free[best]):
            best, most = n, value
    return best
