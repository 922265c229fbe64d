"""Arrays of many episodes, with the environment as first axis, and compiled loops over the environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Index, OrderArrays, StateArrays
from rlsched.cluster.dials import DialArrays
from rlsched.compile.jit import kernel
from rlsched.decide.rows.arrays import WindowArrays
from rlsched.models.arrays import ModelArrays
from rlsched_envs.sim.loop import Curve
from rlsched_envs.sim.sim_arrays import ProgressArrays, SimArrays
from rlsched_envs.training.episode import DONE, EpisodeArrays, begin, observe, step

BEGIN: Final = -1
LEAVE: Final = -2


def stack(episode: Any, count: int) -> Any:
    """Return `count` copies of nested arrays, along a new first axis."""
    if episode is None:
        return None
    if isinstance(episode, tuple):
        return type(episode)(*(stack(part, count) for part in episode))
    copies = np.repeat(np.asarray(episode)[None], count, axis=0)
    return copies.view(np.recarray) if copies.dtype.names else copies


def stack_run(one: SimArrays, count: int, *, learns: bool = False) -> SimArrays:
    """Return `count` copies of a run.

    The copies share arrays that no run changes, and the network that sets dials. They also share the known
    workload properties, unless runs learn from observed speeds (`learns`).
    """
    shared, made = one.state, stack(one, count)
    models = shared.models._replace(trait=stack(shared.models.trait, count if learns else 1))
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
    """Restore the values that `leaves` returned, except of read-only arrays, which never change.

    Raises:
        ValueError: shapes or types differ. In this case nothing is changed.
    """
    mine = leaves(episode)
    if len(mine) != len(saved):
        raise ValueError(
            f"its episodes have {len(saved)} arrays, these {len(mine)}: they are of another version"
        )
    for one, other in zip(mine, saved, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ValueError(
                f"its episodes have an array of shape {other.shape} where these have {one.shape}: they "
                "are of other traces, of another number of clusters, or of another version"
            )
    for one, other in zip(mine, saved, strict=True):
        if one.flags.writeable:
            one[...] = other


@kernel
def view_run(b: SimArrays, k: int) -> SimArrays:
    """Return run `k` of a batch as views, without copies.

    All runs share the network that sets dials, and, if they do not learn, one `trait`.
    """
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
    trait = s.models.trait[min(k, s.models.trait.shape[0] - 1)]
    models = ModelArrays(s.models.gpu, trait, s.models.pair)
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
    )
    return SimArrays(state, b.truth[k], progress, None)


@kernel
def view(b: EpisodeArrays, k: int) -> EpisodeArrays:
    """Return episode `k` of a batch as views (see `view_run`)."""
    w, c = b.window, b.curve
    window = WindowArrays(
        w.slot[k],
        w.node[k],
        w.reason[k],
        w.features[k],
        w.info[k],
        w.clock[k],
        w.partner[k],
        w.out[k],
        w.picks,
        w.logs,
        w.shared,
        w.profile,
        w.places,
        w.own[k],
        w.claim,
    )
    return EpisodeArrays(
        view_run(b.sim, k),
        window,
        Curve(c.instant[k], c.length[k]),
        b.quiet,
        b.known[k],
        b.critic[k],
        b.turn[k],
    )


@kernel
def step_all(
    b: EpisodeArrays,
    rows: NDArray[np.int64],
    masks: NDArray[np.bool_],
    rewards: NDArray[np.float32],
    dones: NDArray[np.bool_],
) -> None:
    """Apply a row in each environment, advance to the next decision, and write its observation.

    Actions and results are (N,). The action BEGIN starts an episode, which is done at once if there is
    nothing to decide; LEAVE leaves the episode unchanged. Observations are in `b.window.features`,
    (N, K, F + C), and undefined for done episodes.
    """
    for k in range(rows.shape[0]):
        if rows[k] == LEAVE:
            continue
        e = view(b, k)
        status, reward = step(e, rows[k]) if rows[k] != BEGIN else begin(e)
        rewards[k] = reward
        dones[k] = status == DONE
        if status != DONE:
            observe(e, masks[k])


@kernel
def first_illegal(masks: NDArray[np.bool_], rows: NDArray[np.int64]) -> int:
    """Return the first environment with an illegal row, -1 if all are legal; `masks` (N, K), `rows` (N,)."""
    for k in range(rows.shape[0]):
        if not 0 <= rows[k] < masks.shape[1] or not masks[k, rows[k]]:
            return k
    return -1


@kernel
def sample(masks: NDArray[np.bool_], key: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
    """Draw a legal row for each environment, with equal probability, from `masks` (N, K) into `rows` (N,).

    The k-th draw of a key is SplitMix64's (Steele, Lea, Flood, OOPSLA'14), scaled by Lemire's multiplication
    (2019). `key`: (2,) the seed, and the number of draws so far.
    """
    for k in range(rows.shape[0]):
        legal = 0
        for row in range(masks.shape[1]):
            legal += masks[k, row]
        key[1] += np.uint64(1)
        z = key[0] + key[1] * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        left = np.int64(((z >> np.uint64(32)) * np.uint64(legal)) >> np.uint64(32))
        rows[k] = 0
        for row in range(masks.shape[1]):
            if masks[k, row]:
                if left == 0:
                    rows[k] = row
                    break
                left -= 1
