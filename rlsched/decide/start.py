"""Python functions that return `Start` actions with the GPUs, the clock and the CPU cores of a job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlsched.cluster.arrays import columns
from rlsched.cluster.choose import choose
from rlsched.cluster.speed import gpu_kind
from rlsched.cluster.state import ClusterState
from rlsched.decide import clocks, options
from rlsched.decide.actions import Start
from rlsched.decide.compiled import for_state
from rlsched.decide.options import PLAIN_START, StartOptions
from rlsched.decide.plans.plan import node_to_place


def policy_start(state: ClusterState) -> StartOptions:
    """Return the default options for the placement and the clock of a job that starts.

    They use all models of speed and power that this state has.
    """
    if not state.needs.models:
        return PLAIN_START
    return StartOptions(*for_state(options.policy_start, state)(state.arrays))


def start_action(
    state: ClusterState, partition: int, seq: int, node: int = -1, *, start: StartOptions = PLAIN_START
) -> Start:
    """Return the `Start` of job `seq`, which must fit, with its GPUs, clock and CPU cores.

    `node`: a node for the job, or BY_RULE or NO_PREFERENCE, as in `choose`, which chooses the GPUs. `start`:
    options for the clock and the CPU cores and, if `node` is negative, for the GPU type.
    """
    arrays, slot = state.arrays, state.slot_of(seq)
    job = columns(arrays.job)
    gpus = np.zeros(int(job["gpus"][slot]), np.int32)
    if node < 0 and start.chooses_type:
        node = int(for_state(node_to_place, state)(arrays, partition, slot, start, node))
    host = int(choose(arrays, partition, slot, node, gpus))
    clock, cores = 1.0, -1
    if gpus.size and state.needs.models:
        clock = float(for_state(clocks.clock_on, state)(arrays, partition, slot, gpus, start))
        cores = int(for_state(clocks.cores_for, state)(arrays, slot, gpus, start))
    return Start(
        seq=seq,
        gpus=tuple(int(g) for g in gpus),
        share_milli=int(job["share_milli"][slot]),
        sm_clock_frac=clock,
        node=-1 if gpus.size else host,
        cpu_milli_each=cores,
    )


def join_action(state: ClusterState, partition: int, seq: int, share_with: int, start: StartOptions) -> Start:
    """Return the `Start` of job `seq` on all GPUs of the running job `share_with` (sequence numbers)."""
    arrays, slot, other = state.arrays, state.slot_of(seq), state.slot_of(share_with)
    gpus = state.gpus_of(share_with)
    kind = int(gpu_kind(arrays, gpus[0]))
    return Start(
        seq=seq,
        gpus=tuple(gpus),
        share_milli=int(arrays.job.share_milli[slot]),
        sm_clock_frac=float(for_state(clocks.clock_for, state)(arrays, partition, slot, kind, start)),
        share_with=share_with,
        cpu_milli_each=int(for_state(clocks.join_cores, state)(arrays, slot, other, kind)),
    )


def can_set_clocks(state: ClusterState, gpus: Sequence[int]) -> bool:
    """Return whether the SM clocks of all these GPUs can be set."""
    return not state.arrays.node.fixed_clock[state.arrays.gpu.node[list(gpus)]].any()
