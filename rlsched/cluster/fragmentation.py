"""Fragmentation of a node, compiled: the measure of fragmentation-gradient descent.

Weng et al., "Beware of Fragmentation" (ATC'23), define the fragmentation of a node as the free GPU capacity
that a task class cannot use, averaged over the classes. The weight of a class is its number of arrivals: in
the paper, in a sample of the workload; here, among the jobs of this state. Classes with fewer than 1 in 200
arrivals are ignored. CPU-only classes and gangs that do not fit on one node are also ignored, because they
add the same amount to every choice. The functions of this module return sums over the classes, weighted by
arrivals, in milli-GPU x jobs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.capacity import will_do
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.compile.jit import array_kernel, kernel

_RAREST: Final = 200


@kernel
def typical_classes(s: StateArrays, out: NDArray[np.int64]) -> int:
    """Write the demand classes that request GPUs and have many jobs to `out` (C,). Return their number."""
    total = 0
    for c in range(s.demand.shape[0]):
        total += s.demand.arrived[c]
    found = 0
    for c in range(s.demand.shape[0]):
        if s.demand.gpus[c] > 0 and s.demand.arrived[c] * _RAREST >= max(total, 1):
            out[found] = c
            found += 1
    return found


@kernel
def _unusable_milli(
    s: StateArrays, n: int, c: int, free: NDArray[np.int64], cpu_milli: int, memory_mib: int
) -> int:
    """Return the free capacity of node `n` that class `c` cannot use, milli-GPU.

    `free`: (GPUs of the node,) free capacity of each GPU, milli-GPU.
    """
    d, share = s.demand, s.demand.share_milli[c]
    total, small, usable = 0, 0, 0
    for k in range(free.shape[0]):
        total += free[k]
        if free[k] >= share:
            usable += 1
        else:
            small += free[k]
    places = d.gpus[c]
    runs = (
        will_do(s, c, n)
        and usable >= places
        and cpu_milli >= d.cpu_milli_each[c] * places
        and memory_mib >= d.memory_mib_each[c] * places
    )
    return small if runs else total


@kernel
def fragmentation_milli(
    s: StateArrays,
    n: int,
    classes: NDArray[np.int64],
    free: NDArray[np.int64],
    cpu_milli: int,
    memory_mib: int,
) -> float:
    """Return the fragmentation of node `n`: arrivals x unusable free capacity, summed over the classes.

    The unit is milli-GPU x jobs.
    """
    total = 0.0
    for k in range(classes.shape[0]):
        c = classes[k]
        total += s.demand.arrived[c] * _unusable_milli(s, n, c, free, cpu_milli, memory_mib)
    return total


@array_kernel
def _added(s: StateArrays, n: int, c: int, g: int, classes: NDArray[np.int64]) -> float:
    """Return the fragmentation that a job of class `c` adds to node `n`, milli-GPU x jobs.

    `g`: GPU that the job shares; -1: the job gets whole GPUs.
    """
    first, share = s.node.first_gpu[n], s.demand.share_milli[c]
    free = np.empty(s.node.gpus[n], np.int64)
    for k in range(free.shape[0]):
        free[k] = s.gpu.free_milli[first + k]
    cpu, memory = s.node.cpu_free_milli[n], s.node.memory_free_mib[n]
    before = fragmentation_milli(s, n, classes, free, cpu, memory)
    left = s.demand.gpus[c]
    for k in range(free.shape[0]):
        if first + k == g or (g < 0 and left > 0 and free[k] == WHOLE_GPU_MILLI):
            free[k] -= share
            left -= 1
    cpu -= s.demand.gpus[c] * s.demand.cpu_milli_each[c]
    memory -= s.demand.gpus[c] * s.demand.memory_mib_each[c]
    if s.demand.exclusive[c]:
        free[:] = 0
    return fragmentation_milli(s, n, classes, free, cpu, memory) - before


@kernel
def added_by_gpus(s: StateArrays, n: int, c: int, classes: NDArray[np.int64]) -> float:
    """Return the fragmentation that a job of class `c` on whole GPUs adds to node `n`, milli-GPU x jobs."""
    return _added(s, n, c, -1, classes)


@kernel
def added_by_share(s: StateArrays, n: int, c: int, g: int, classes: NDArray[np.int64]) -> float:
    """Return the fragmentation that a job adds to node `n` with a share of GPU `g`, milli-GPU x jobs."""
    return _added(s, n, c, g, classes)
