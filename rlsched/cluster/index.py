"""Index structures of the state, compiled: jobs by demand class, and sets of nodes.

Each partition has one pairing heap (Fredman et al., 1986) of waiting jobs per demand class, with the first
job at the root. If one job of a class fits, all jobs of the class fit. The first job that fits is therefore
the root of a heap, and the search time does not depend on the length of the queue. A job waits in at most two
heaps: `side` 0 is the heap in the partition of the VC's own nodes, `side` 1 the heap in the shared partition.
Running jobs are in unordered linked lists. The slots contain the links.

A set of nodes is an array of words in two parts. The first part has one bit per node. The second part has one
bit per word of the first part: 1 if this word is not 0.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import WORD_BITS, StateArrays
from rlsched.compile.jit import kernel


@kernel
def comes_before(s: StateArrays, a: int, b: int) -> bool:
    """Return whether the job in slot `a` precedes the job in slot `b` in the order of the queue."""
    key = s.derived.slot.key
    return key[a] < key[b] or (key[a] == key[b] and s.job.seq[a] < s.job.seq[b])


@kernel
def _meld(s: StateArrays, side: int, a: int, b: int) -> int:
    """Merge the heaps with the roots `a` and `b` (-1: empty heap), and return the root of the result.

    The caller must set `next` and `back` of this root.
    """
    if a < 0:
        return b
    if b < 0:
        return a
    if comes_before(s, b, a):
        a, b = b, a
    slot = s.derived.slot
    first = slot.child[a, side]
    slot.next[b, side], slot.back[b, side] = first, a
    if first >= 0:
        slot.back[first, side] = b
    slot.child[a, side] = b
    return a


@kernel
def _combine(s: StateArrays, side: int, first: int) -> int:
    """Merge a list of sibling heaps that begins with `first`, and return the root of the result.

    Neighbours are merged in pairs; then the merged pairs are merged, beginning with the last pair.
    """
    slot = s.derived.slot
    pairs = -1
    while first >= 0:
        a, b = first, slot.next[first, side]
        first = slot.next[b, side] if b >= 0 else -1
        root = _meld(s, side, a, b)
        slot.next[root, side] = pairs
        pairs = root
    root = -1
    while pairs >= 0:
        following = slot.next[pairs, side]
        root = _meld(s, side, root, pairs)
        pairs = following
    return root


@kernel
def _set_root(s: StateArrays, side: int, p: int, c: int, root: int) -> None:
    s.derived.class_queue.root[p, c] = root
    if root >= 0:
        s.derived.slot.next[root, side] = -1
        s.derived.slot.back[root, side] = -1


@kernel
def join_class(s: StateArrays, side: int, p: int, slot: int) -> None:
    """Add a waiting job, whose slot already has a key, to the heap of its class in partition `p`."""
    c = s.job.demand[slot]
    s.derived.slot.child[slot, side] = -1
    s.derived.slot.next[slot, side] = -1
    s.derived.slot.back[slot, side] = -1
    _set_root(s, side, p, c, _meld(s, side, s.derived.class_queue.root[p, c], slot))
    queues = s.derived.class_queue
    least_s = queues.least_s[p, c] if queues.waiting[p, c] > 0 else math.inf
    queues.least_s[p, c] = min(least_s, s.job.predicted_s[slot])
    queues.waiting[p, c] += 1


@kernel
def leave_class(s: StateArrays, side: int, p: int, slot: int) -> None:
    """Remove a waiting job from the heap of its class in partition `p`."""
    c, links = s.job.demand[slot], s.derived.slot
    below = _combine(s, side, links.child[slot, side])
    root = s.derived.class_queue.root[p, c]
    if root == slot:
        _set_root(s, side, p, c, below)
    else:
        back, following = links.back[slot, side], links.next[slot, side]
        if links.child[back, side] == slot:
            links.child[back, side] = following
        else:
            links.next[back, side] = following
        if following >= 0:
            links.back[following, side] = back
        _set_root(s, side, p, c, _meld(s, side, root, below))
    s.derived.class_queue.waiting[p, c] -= 1


@kernel
def join_running(s: StateArrays, p: int, slot: int) -> None:
    """Add a running job to the list of running jobs of its class in partition `p`."""
    root, links = s.derived.class_queue.running, s.derived.slot
    c = s.job.demand[slot]
    following = root[p, c]
    links.next_alike[slot], links.back_alike[slot] = following, -1
    if following >= 0:
        links.back_alike[following] = slot
    root[p, c] = slot


@kernel
def leave_running(s: StateArrays, p: int, slot: int) -> None:
    """Remove a job from the list of running jobs of its class in partition `p`."""
    links = s.derived.slot
    back, following = links.back_alike[slot], links.next_alike[slot]
    if back >= 0:
        links.next_alike[back] = following
    else:
        s.derived.class_queue.running[p, s.job.demand[slot]] = following
    if following >= 0:
        links.back_alike[following] = back


_MULTIPLIER: Final = 0x077CB531
"""A de Bruijn sequence of 32 bits: shifted by k, its top five bits differ for every k."""
_PLACES: Final = np.array([((_MULTIPLIER << k) & 0xFFFFFFFF) >> 27 for k in range(32)]).argsort()


@kernel
def _low_words(nodes: int) -> int:
    return max(1, (nodes + WORD_BITS - 1) // WORD_BITS)


@kernel
def _lowest(word: int) -> int:
    """Return the position of the lowest 1 bit of a word that is not 0."""
    return _PLACES[(((word & -word) * _MULTIPLIER) & 0xFFFFFFFF) >> 27]


@kernel
def include(members: NDArray[np.int64], nodes: int, n: int) -> None:
    """Add node `n` to a set of nodes; `nodes`: number of nodes in the cluster."""
    word = n // WORD_BITS
    members[word] |= 1 << (n % WORD_BITS)
    members[_low_words(nodes) + word // WORD_BITS] |= 1 << (word % WORD_BITS)


@kernel
def exclude(members: NDArray[np.int64], nodes: int, n: int) -> None:
    """Remove node `n` from a set of nodes; `nodes`: number of nodes in the cluster."""
    word = n // WORD_BITS
    members[word] &= ~(1 << (n % WORD_BITS))
    if members[word] == 0:
        members[_low_words(nodes) + word // WORD_BITS] &= ~(1 << (word % WORD_BITS))


@kernel
def next_member(members: NDArray[np.int64], nodes: int, start: int) -> int:
    """Return the lowest node of a set that is `start` or above, -1 if there is none."""
    low = _low_words(nodes)
    word = start // WORD_BITS
    if word >= low:
        return -1
    rest = members[word] >> (start % WORD_BITS)
    if rest != 0:
        return start + _lowest(rest)
    word += 1
    top = word // WORD_BITS
    shift = word % WORD_BITS
    while low + top < members.shape[0]:
        rest = members[low + top] >> shift
        if rest != 0:
            word = top * WORD_BITS + shift + _lowest(rest)
            return word * WORD_BITS + _lowest(members[word])
        top += 1
        shift = 0
    return -1
