"""The planned ends of running jobs, compiled: a binary heap ordered by (time, row)."""

from __future__ import annotations

from rlsched.compile.jit import kernel
from rlsched_envs.sim.sim_arrays import ProgressArrays


@kernel
def _before(r: ProgressArrays, a: int, b: int) -> bool:
    if r.ends.heap_s[a] != r.ends.heap_s[b]:
        return r.ends.heap_s[a] < r.ends.heap_s[b]
    return r.ends.row[r.ends.heap_slot[a]] < r.ends.row[r.ends.heap_slot[b]]


@kernel
def _swap(r: ProgressArrays, a: int, b: int) -> None:
    r.ends.heap_s[a], r.ends.heap_s[b] = r.ends.heap_s[b], r.ends.heap_s[a]
    r.ends.heap_slot[a], r.ends.heap_slot[b] = r.ends.heap_slot[b], r.ends.heap_slot[a]


@kernel
def push_end(r: ProgressArrays, end_s: float, slot: int) -> None:
    """Plan the end of a running slot."""
    at = r.run[0].heap_len
    r.run[0].heap_len += 1
    r.ends.heap_s[at], r.ends.heap_slot[at] = end_s, slot
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel
def _sift_down(r: ProgressArrays, at: int) -> None:
    last = r.run[0].heap_len
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and _before(r, child + 1, child):
            child += 1
        if not _before(r, child, at):
            break
        _swap(r, child, at)
        at = child


@kernel
def pop_end(r: ProgressArrays) -> int:
    """Remove the first end from the heap, and return its slot."""
    slot = r.ends.heap_slot[0]
    last = r.run[0].heap_len - 1
    r.run[0].heap_len = last
    r.ends.heap_s[0], r.ends.heap_slot[0] = r.ends.heap_s[last], r.ends.heap_slot[last]
    _sift_down(r, 0)
    return slot


@kernel
def forget_end(r: ProgressArrays, slot: int) -> None:
    """Remove the planned end of a running slot, so that the heap has no stale ends.

    Searches all running jobs: interruptions are rare compared to ends, which do not pay for this.
    """
    at = 0
    while r.ends.heap_slot[at] != slot:
        at += 1
    last = r.run[0].heap_len - 1
    r.run[0].heap_len = last
    if at == last:
        return
    r.ends.heap_s[at], r.ends.heap_slot[at] = r.ends.heap_s[last], r.ends.heap_slot[last]
    while at > 0 and _before(r, at, (at - 1) // 2):
        _swap(r, at, (at - 1) // 2)
        at = (at - 1) // 2
    _sift_down(r, at)
