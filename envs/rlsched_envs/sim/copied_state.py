"""Copies the state of a cluster with its live jobs into a simulated run."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import RUNNING, SLOT_EMPTY, StateArrays
from rlsched.compile.jit import kernel
from rlsched_envs.sim.moves import note_start
from rlsched_envs.sim.sim_arrays import SimArrays

_ALIGNMENT: Final = 64


class PackedRun(NamedTuple):
    """A run whose arrays are views of one buffer. Copying the buffer copies the run."""

    memory: NDArray[np.uint8]
    sim: SimArrays


def pack(run: SimArrays) -> PackedRun:
    """Return a copy of the run in one buffer."""
    size = 0
    offsets: list[int] = []

    def measure(part: Any) -> None:
        nonlocal size
        if isinstance(part, tuple):
            for one in part:
                measure(one)
        elif part is not None:
            offsets.append(size)
            size += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT

    measure(run)
    memory = np.zeros(size, np.uint8)
    places = iter(offsets)

    def move(part: Any) -> Any:
        if isinstance(part, tuple):
            return type(part)(*(move(one) for one in part))
        if part is None:
            return None
        at = next(places)
        moved = memory[at : at + part.nbytes].view(part.dtype).reshape(part.shape).view(type(part))
        moved[...] = part
        moved.flags.writeable = part.flags.writeable  # compiled kernels expect the same flag
        return moved

    return PackedRun(memory, move(run))


def fill(to: StateArrays, s: StateArrays, slots: NDArray[np.int32], partition: int = -1) -> None:
    """Copy nodes, GPUs, demand classes and some jobs from the state `s` to the state `to`.

    The job in slot `slots[k]` of `s` gets slot k of `to`. The copied jobs belong only to `partition`; if
    `partition` is -1, the jobs keep their partitions. The caller must then call `rebuild_index` for `to`.
    """
    number = np.zeros(len(s.job) + 1, np.int32)
    number[-1] = -1
    number[slots] = np.arange(len(slots))
    to.node[:], to.gpu[:], to.demand[:] = s.node, s.gpu, s.demand
    to.gpu.tenant[:] = number[s.gpu.tenant]
    to.job.status[:] = SLOT_EMPTY
    live = to.job[: len(slots)]
    live[:] = s.job[slots]
    if partition >= 0:
        live.own_partition[:], live.shared_partition[:] = partition, -1
    to.config[:], to.counters[:] = s.config, s.counters
    to.counters[0].live_jobs, to.config[0].sorts_queue = len(slots), 1
    to.order.code[:] = s.order.code[: len(to.order.code)]
    to.config.modelled = to.order.code.revises = 0  # run times are given, and predictions do not learn


@kernel
def let_run(run: SimArrays, live: int) -> None:
    """Let the run continue with the copied jobs, which are its first `live` rows.

    A running job ends at its `fixed_end_s`, unless it is preempted.
    """
    truth, job = run.truth, run.state.job
    for row in range(live):
        if job.status[row] == RUNNING:
            note_start(run, row)
            work_s = truth.fixed_end_s[row] - job.start_s[row] - job.overhead_left_s[row]
            truth.duration_s[row] = job.saved_s[row] + work_s
        truth.fixed_end_s[row] = np.nan
