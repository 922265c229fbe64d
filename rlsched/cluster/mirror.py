"""A copy of a state, on which somebody may decide and see what would come of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlsched.cluster.state import ClusterState


def mirror_of(state: ClusterState) -> ClusterState:
    """A state that is equal, and whose changes are its own; kernels that know the state know it too.

    What never changes is shared: what nodes are, and arrays that are read-only. A copy of such an array could
    be written, which is another type to a compiled function.
    """
    kept = [*state.nodes, *(array for array in _arrays(state.arrays) if not array.flags.writeable)]
    return copy.deepcopy(state, {id(one): one for one in kept})


def _arrays(part: Any) -> Iterator[np.ndarray]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _arrays(inner)
    elif isinstance(part, np.ndarray):
        yield part
