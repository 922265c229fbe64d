"""The arrays of a cluster's state: NamedTuples of numpy arrays that compiled kernels read and write.

N nodes, G GPUs, J job slots, P partitions, M the largest number of GPUs on one node. Live jobs only are in
slots; a job's identity and every order is its `seq`, never its slot.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_TENANTS: Final = 4
"""Jobs that one GPU can hold at most."""
WHOLE_GPU_MILLI: Final = 1000

NODE_UP: Final = 0
NODE_DRAINED: Final = 1
NODE_DOWN: Final = 2

SLOT_EMPTY: Final = 0
WAITING: Final = 1
RUNNING: Final = 2

LIVE_JOBS: Final = 0
NEXT_SEQ: Final = 1
DECISIONS: Final = 2
ORDER: Final = 3
NUM_COUNTERS: Final = 4

ORDER_CODES: Final = {"submit": 0, "predicted": 1, "predicted_gpu_time": 2, "remaining": 3}


NODE: Final = np.dtype(
    [
        ("gpus", np.int32),
        ("first_gpu", np.int32),  # global number of its GPU 0
        ("part_of", np.int32),  # its partition
        ("status", np.int32),  # NODE_UP, NODE_DRAINED, NODE_DOWN
        ("free", np.int32),  # wholly free GPUs, whatever the status
    ]
)
"""One entry a node."""

GPU: Final = np.dtype(
    [
        ("node", np.int32),
        ("free_milli", np.int32),  # 1,000 = wholly free
        ("tenant", np.int32, (MAX_TENANTS,)),  # job slot, -1 where none
        ("link", np.int32, (MAX_TENANTS,)),  # next place of the same job, as gpu * MAX_TENANTS + k; -1 ends
    ]
)
"""One entry a GPU, in global numbering."""

JOB: Final = np.dtype(
    [
        ("seq", np.int64),  # arrival number
        ("held_for", np.int64),  # ... and while the job of this number waits too, -1: whatever happens
        ("submit_s", np.float64),
        ("predicted_s", np.float64),  # stamped at arrival
        ("spread", np.float64),  # standard deviation of ln(run time / predicted_s)
        ("limit_s", np.float64),  # the user's time limit, nan where none
        ("start_s", np.float64),  # start of the current attempt, nan while it waits
        ("held_since_s", np.float64),  # first time a *wait* passed it over though it fitted, nan if never
        ("held_until_s", np.float64),  # a *wait* keeps it back until then, -inf if none does ...
        ("attained_gpu_s", np.float64),  # service received in earlier attempts
        ("overhead_left_s", np.float64),  # restart cost still to be paid
        ("saved_s", np.float64),  # work of earlier attempts that need not be done again
        ("sm_clock_frac", np.float64),
        ("rate", np.float64),  # speed relative to alone at full clock
        ("rate_since_s", np.float64),
        ("status", np.int32),  # SLOT_EMPTY, WAITING, RUNNING
        ("vc", np.int32),  # number of the VC's name, -1 where none
        ("own_partition", np.int32),  # partition of its VC's own nodes, -1 where it has none
        ("shared_partition", np.int32),  # partition of the nodes that serve every VC, -1 where none
        ("held_for_slot", np.int32),  # where to look for that job
        ("placed_in", np.int32),  # partition it runs in, -1 while it waits
        ("gpus", np.int32),  # GPUs of the gang
        ("share_milli", np.int32),  # share of each of its GPUs
        ("attempt", np.int32),  # 1 for the first
        ("preemptions", np.int32),
        ("pinned", np.int32),  # 1: must not be preempted
        ("generation", np.int32),  # grows with every change of rate
        ("head", np.int32),  # first place of its allocation, as gpu * MAX_TENANTS + k; -1 = none
    ]
)
"""One entry a slot; a slot whose `status` is SLOT_EMPTY holds leftovers."""

SLOT: Final = np.dtype(
    [
        ("key", np.float64),  # order key of a waiting slot
        ("stack", np.int32),  # the first J - live entries are empty slots
        ("running", np.int32),  # the first `running_len` entries are running slots
        ("running_at", np.int32),  # position of a running slot in `running`
    ]
)
"""Derived, one entry a slot."""

PARTITION: Final = np.dtype(
    [
        ("open_gpus", np.int32),  # GPUs on nodes that are up
        ("open_nodes", np.int32),
        ("free_gpus", np.int32),  # free GPUs on nodes that are up
        ("node_size", np.int32),  # GPUs of the largest node, up or not
        ("queue_len", np.int32),
    ]
)
"""Derived, one entry a partition."""

Records = Any
"""A numpy record array: a struct of arrays, kept together in memory; `records.field` is an array."""


class Index(NamedTuple):
    """Derived from the rest, and rebuilt from it by `rebuild_index`; never part of a digest."""

    slot: Records  # (J,) SLOT
    part: Records  # (P,) PARTITION
    holes: NDArray[np.int32]  # (P, M + 1) nodes that are up, by free GPUs
    whole: NDArray[np.int32]  # (P, M + 1) nodes that are up and wholly free, by their size
    waiting_sizes: NDArray[np.int32]  # (P, M + 2) waiting jobs by GPUs, those above M together
    queue: NDArray[np.int32]  # (P, J) waiting slots by (key, seq)
    running_len: NDArray[np.int32]  # (1,)


class StateArrays(NamedTuple):
    """All of a cluster's state. Few arrays, because every call of a kernel passes all of them."""

    node: Records  # (N,) NODE
    gpu: Records  # (G,) GPU
    job: Records  # (J,) JOB
    derived: Index
    counters: NDArray[np.int64]  # (NUM_COUNTERS,)


def records(count: int, dtype: np.dtype[Any]) -> Records:
    """`count` zeroed entries."""
    return np.zeros(count, dtype).view(np.recarray)


def empty_state(
    nodes: int, gpus: int, slots: int, partitions: int, largest_node: int, order: str
) -> StateArrays:
    """Arrays of these sizes: no nodes described, no jobs. Fill `node` and `gpu`, then `rebuild_index`."""
    gpu = records(gpus, GPU)
    gpu.free_milli[:] = WHOLE_GPU_MILLI
    gpu.tenant[:] = gpu.link[:] = -1
    index = Index(
        slot=records(slots, SLOT),
        part=records(partitions, PARTITION),
        holes=np.zeros((partitions, largest_node + 1), np.int32),
        whole=np.zeros((partitions, largest_node + 1), np.int32),
        waiting_sizes=np.zeros((partitions, largest_node + 2), np.int32),
        queue=np.zeros((partitions, slots), np.int32),
        running_len=np.zeros(1, np.int32),
    )
    counters = np.zeros(NUM_COUNTERS, np.int64)
    counters[ORDER] = ORDER_CODES[order]
    job = records(slots, JOB)
    job.head[:] = -1
    return StateArrays(records(nodes, NODE), gpu, job, index, counters)


def grown_slots(state: StateArrays, slots: int) -> StateArrays:
    """The same state with room for `slots` jobs; its index has to be rebuilt."""
    partitions, sizes = state.derived.holes.shape
    fresh = empty_state(0, 0, slots, partitions, sizes - 1, order="submit")
    fresh.job[: state.job.shape[0]] = state.job
    return state._replace(job=fresh.job, derived=fresh.derived)
