"""Many episodes in one set of arrays: a leading axis over environments, and compiled loops over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Index, StateArrays
from rlsched.decide.windows import WindowArrays
from rlsched.jit import kernel
from rlsched_envs.episode import DECIDE, DONE, EpisodeArrays, advance, begin, observe, step
from rlsched_envs.simulation import ProgressArrays, SimArrays


def stack(episode: Any, count: int) -> Any:
    """`count` copies of nested arrays, along a new first axis."""
    if isinstance(episode, tuple):
        return type(episode)(*(stack(part, count) for part in episode))
    copies = np.repeat(np.asarray(episode)[None], count, axis=0)
    return copies.view(np.recarray) if copies.dtype.names else copies


def leaves(episode: Any) -> list[NDArray[Any]]:
    """The arrays of nested tuples, in order."""
    return [leaf for part in episode for leaf in leaves(part)] if isinstance(episode, tuple) else [episode]


@kernel
def view(b: EpisodeArrays, k: int) -> EpisodeArrays:
    """Episode `k` of a batch: views, nothing is copied."""
    s, x, r, w = b.sim.state, b.sim.state.derived, b.sim.progress, b.window
    index = Index(
        x.slot[k],
        x.part[k],
        x.holes[k],
        x.whole[k],
        x.by_free[k],
        x.by_whole[k],
        x.lane[k],
        x.queue[k],
        x.running_len[k],
    )
    state = StateArrays(s.node[k], s.gpu[k], s.job[k], s.demand[k], index, s.counters[k])
    progress = ProgressArrays(
        r.ends[k], r.outcome[k], r.placed_at[k], r.placed_gpu[k], r.scratch[k], r.clock[k], r.tally[k]
    )
    window = WindowArrays(w.slot[k], w.node[k], w.reason[k], w.features[k], w.info[k])
    return EpisodeArrays(
        SimArrays(state, b.sim.truth[k], progress),
        window,
        b.reference_s[k],
        b.reference_queued_s[k],
        b.reference_waiting[k],
        b.reference_start_s[k],
        b.floats[k],
        b.ints[k],
    )


@kernel
def begin_one(b: EpisodeArrays, k: int, warmup_row: int, handover_row: int, drains: int) -> bool:
    """Begin episode `k`; False if it holds nothing to decide."""
    e = view(b, k)
    return begin(e, warmup_row, handover_row, drains) and advance(e) == DECIDE


@kernel
def observe_one(
    b: EpisodeArrays, k: int, observations: NDArray[np.float32], masks: NDArray[np.bool_]
) -> None:
    """Write episode `k`'s window into row `k` of (N, K, F + C) and (N, K)."""
    observe(view(b, k), observations[k], masks[k])


@kernel
def step_all(
    b: EpisodeArrays,
    rows: NDArray[np.int64],
    observations: NDArray[np.float32],
    masks: NDArray[np.bool_],
    rewards: NDArray[np.float32],
    dones: NDArray[np.bool_],
) -> None:
    """Apply a row in every environment, go on, and write what each sees next. (N,) actions and results."""
    for k in range(rows.shape[0]):
        e = view(b, k)
        status, reward = step(e, rows[k])
        rewards[k] = reward
        dones[k] = status == DONE
        if status != DONE:
            observe(e, observations[k], masks[k])
