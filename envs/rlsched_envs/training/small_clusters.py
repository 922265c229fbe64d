"""Small clusters of one partition: creates their arrays once, and loads each new window into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_DOWN, NODE_UP, records
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched_envs.sim.modelling import MOST_LUCK, set_watts
from rlsched_envs.sim.sim_arrays import TRUTH, SimArrays, new_progress
from rlsched_envs.training.sources import GPU_TYPES, Drawn, EpisodeJobs, EpisodeSource, largest_gang

CORES_EACH: Final = 6
"""CPU cores per GPU on the nodes of these clusters, as in the clusters Venus and Philly."""


def node_size(sources: Sequence[EpisodeSource]) -> int:
    """Return the number of GPUs per node, which must be the same in all sources.

    Raises:
        InputError: sources have different numbers of GPUs per node.
    """
    sizes = {source.gpus_per_node for source in sources}
    if len(sizes) != 1:
        raise InputError(
            f"expected traces with the same number of GPUs per node, got {sorted(sizes)} GPUs per node; "
            "leave out some of the traces"
        )
    return sizes.pop()


def gang_sizes(sources: Sequence[EpisodeSource], drawn: Drawn) -> list[int]:
    """Return all gang sizes (GPUs of a job) that windows of these sources can have, ascending."""
    sizes: set[int] = set()
    for source in sources:
        own = np.unique(source.gpus)
        for nodes in range(drawn.nodes_low, drawn.nodes_high + 1):
            sizes.update(np.minimum(own, largest_gang(nodes, source.gpus_per_node)).tolist())
    return sorted(sizes)


def class_numbers(gangs: Sequence[int]) -> NDArray[np.int32]:
    """Return an array: number of GPUs of a job -> index of the job's demand class.

    `gangs`: all gang sizes, ascending; the jobs of each size are a demand class.
    """
    numbers = np.zeros(max(gangs) + 1, np.int32)
    numbers[list(gangs)] = np.arange(len(gangs))
    return numbers


def blank_run(
    drawn: Drawn,
    gpus_per_node: int,
    gangs: Sequence[int],
    order: Order,
    *,
    modelled: bool,
    assumed_scale: float = 1.0,
) -> SimArrays:
    """Create a run without jobs, on `drawn.nodes_high` nodes in one partition.

    Args:
        drawn: Defines the number of jobs of a window and the maximum number of nodes.
        gpus_per_node: GPUs per node.
        gangs: All gang sizes of the windows that will be loaded, ascending.
        order: Order of the queue.
        modelled: Whether there are models of speed and power.
        assumed_scale: Factor for figures of the catalogue that are assumed, not measured.
    """
    rows = drawn.jobs
    nodes = NodeGroup(count=drawn.nodes_high, gpus=gpus_per_node, cpus=CORES_EACH * gpus_per_node)
    spec = ClusterSpec(name="episode", nodes=(nodes,))
    state = ClusterState.from_spec(spec, OrderedQueue(order), slots=rows)
    state.reserve_demands([Demand(gpus=gang, cpu_milli=CORES_EACH * 1000 * gang) for gang in gangs])
    if modelled:
        state.use_models(load_catalogue(assumed_scale=assumed_scale).arrays(GPU_TYPES))
        set_watts(state, spec)
    truth = records(rows, TRUTH)
    truth.fixed_end_s = truth.limit_s = np.nan
    truth.vc = truth.own_partition = truth.reference_kind = -1
    progress = new_progress(rows, truth, state.num_gpus, keep_placements=False)
    progress.books.noise = 1.0
    return SimArrays(state.arrays, truth, progress)


def load_window(batch: SimArrays, k: int, window: EpisodeJobs, class_of: NDArray[np.int32]) -> None:
    """Load a window's jobs and number of nodes into run `k` of a batch. `class_of`: from `class_numbers`."""
    node, truth = batch.state.node, batch.truth
    node.status[k] = np.where(np.arange(node.status.shape[1]) < window.nodes, NODE_UP, NODE_DOWN)
    truth.submit_s[k], truth.duration_s[k] = window.submit_s, window.duration_s
    truth.gpus[k], truth.demand[k] = window.gpus, class_of[window.gpus]
    truth.predicted_s[k], truth.spread[k] = window.predicted_s, window.spread
    truth.workload[k] = window.workload


def set_models(
    batch: SimArrays, k: int, modelled: bool, kinds: Sequence[int], weight: float, key: int
) -> None:
    """Set the models, GPU types, weight of energy and random draws of run `k` of a batch.

    Args:
        batch: The runs.
        k: Index of the run.
        modelled: Whether the run has models of speed.
        kinds: Indices in `GPU_TYPES`: node n has the type `kinds[n % len(kinds)]`.
        weight: Weight of energy relative to time, 0 to 1.
        key: Key of the random draws of the run's jobs.
    """
    state, progress = batch.state, batch.progress
    state.config.modelled[k, 0] = modelled
    state.config.energy_ppm[k, 0] = round(weight * 1e6)
    state.node.kind[k] = np.resize(kinds, state.node.kind.shape[1])
    state.derived.part.kind[k] = kinds[0]
    keys = progress.outcome.key
    progress.books.luck[k, 0] = key % MOST_LUCK
    keys[k] = np.random.SeedSequence(key).generate_state(keys.shape[1], np.uint64)
