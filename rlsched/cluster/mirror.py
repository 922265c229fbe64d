"""Copies of a state, on which decisions can be simulated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlsched.cluster.state import ClusterState


def mirror_of(state: ClusterState) -> ClusterState:
    """Return an independent copy of a state. Kernels compiled for the state also accept the copy.

    The copy shares immutable data with the state: descriptions of nodes, and read-only arrays. A copy of a
    read-only array would be writable, and numba compiles a separate kernel for writable arrays.
    """
    kept = [*state.nodes, *(array for array in _arrays(state.arrays) if not array.flags.writeable)]
    return copy.deepcopy(state, {id(one): one for one in kept})


def _arrays(part: Any) -> Iterator[np.ndarray]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _arrays(inner)
    elif isinstance(part, np.ndarray):
        yield part
