"""Batches of runs: each array has the run as its first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Index, OrderArrays, StateArrays
from rlsched.cluster.dials import DialArrays
from rlsched.compile.jit import kernel
from rlsched.models.arrays import ModelArrays
from rlsched_envs.sim.sim_arrays import ProgressArrays, SimArrays


def stack(episode: Any, count: int) -> Any:
    """Return nested tuples of arrays with `count` copies of each array, stacked along a new first axis."""
    if episode is None:
        return None
    if isinstance(episode, tuple):
        return type(episode)(*(stack(part, count) for part in episode))
    copies = np.repeat(np.asarray(episode)[None], count, axis=0)
    return copies.view(np.recarray) if copies.dtype.names else copies


def stack_run(one: SimArrays, count: int) -> SimArrays:
    """Return a batch of `count` copies of a run.

    All runs share the arrays that no run changes.
    """
    shared, made = one.state, stack(one, count)
    models = shared.models._replace(trait=stack(shared.models.trait, 1))
    dials = shared.dials._replace(
        dial=made.state.dials.dial, counted=made.state.dials.counted, seen=made.state.dials.seen
    )
    order = made.state.order._replace(cost=shared.order.cost)
    return made._replace(state=made.state._replace(models=models, order=order, dials=dials))


def leaves(episode: Any) -> list[NDArray[Any]]:
    """Return the arrays of nested tuples, in order."""
    if isinstance(episode, tuple):
        return [leaf for part in episode for leaf in leaves(part)]
    return [] if episode is None else [episode]


def restore(episode: Any, saved: Sequence[NDArray[Any]]) -> None:
    """Copy the arrays `saved`, a result of `leaves`, to `episode`. Skip read-only arrays, which never change.

    Raises:
        ValueError: number, shapes or types of the arrays differ; `episode` is unchanged.
    """
    mine = leaves(episode)
    if len(mine) != len(saved):
        raise ValueError(
            f"the saved episodes have {len(saved)} arrays, new ones have {len(mine)}: they were saved by "
            "another version of rlsched"
        )
    for one, other in zip(mine, saved, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ValueError(
                f"the saved episodes have an array of shape {other.shape}, these clusters have "
                f"{one.shape}: they differ in traces, number of clusters or version of rlsched"
            )
    for one, other in zip(mine, saved, strict=True):
        if one.flags.writeable:
            one[...] = other


@kernel
def view_run(b: SimArrays, k: int) -> SimArrays:
    """Return run `k` of a batch as views. Arrays that all runs share (`stack_run`) stay whole."""
    s, i, r, d = b.state, b.state.derived, b.progress, b.state.dials
    index = Index(
        i.slot[k],
        i.part[k],
        i.holes[k],
        i.whole[k],
        i.by_free[k],
        i.by_whole[k],
        i.class_queue[k],
        i.queue[k],
        i.running_len[k],
    )
    models = ModelArrays(s.models.gpu, s.models.trait[0], s.models.pair)
    state = StateArrays(
        s.node[k],
        s.gpu[k],
        s.job[k],
        s.demand[k],
        index,
        s.config[k],
        s.counters[k],
        s.scratch[k],
        OrderArrays(s.order.code[k], s.order.cost),
        models,
        DialArrays(
            d.controller,
            d.only_modelled,
            d.dial[k],
            d.counted[k],
            d.seen[k],
            d.layer1,
            d.layer2,
            d.output,
            d.scratch,
            d.action,
        ),
    )
    progress = ProgressArrays(
        r.ends[k],
        r.work[k],
        r.outcome[k],
        r.placed_at[k],
        r.placed_gpu[k],
        r.scratch[k],
        r.run[k],
        r.books[k],
        r.signal[k],
        r.used[k],
        r.hours[k],
        r.announced[k],
    )
    return SimArrays(state, b.truth[k], progress, None)
