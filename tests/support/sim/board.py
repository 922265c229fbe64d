"""A cluster with models and jobs of named workloads, for tests with answers computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.models.catalogue import load_catalogue

CATALOGUE = load_catalogue()


def node(name: str, gpus: int, gpu_type: str = "V100", cpus: int = 0, **more: object) -> NodeSpec:
    return NodeSpec(name=name, gpus=gpus, gpu_type=gpu_type, cpus=cpus, **more)


def modelled(*nodes: NodeSpec) -> ClusterState:
    """An idle cluster with the catalogue's models."""
    state = ClusterState(list(nodes), OrderedQueue(Order()), slots=16)
    state.use_models(CATALOGUE.arrays(state.kind_names))
    return state


def add(
    state: ClusterState,
    workload: str,
    gpus: int = 1,
    *,
    cores: float = 0,
    predicted_s: float = 100.0,
    vc: str = "",
    **demand: object,
) -> int:
    """Queue a job of this workload. Returns its number. `cores`: with each GPU."""
    wanted = Demand(gpus=gpus, cpu_milli=int(cores * 1000 * max(gpus, 1)), **demand)
    seq = state.add_job(demand=wanted, vc=vc, submit_s=0.0, predicted_s=predicted_s, spread=0.5)
    state.arrays.job.workload[state.slot_of(seq)] = CATALOGUE.number(workload)
    return seq


def running(
    state: ClusterState, workload: str, where: Sequence[int], *, clock: float = 1.0, **more: object
) -> int:
    """Run a job of this workload on these GPUs since time 0."""
    seq = add(state, workload, len(where), **more)
    state.start(seq, where, 0.0, sm_clock_frac=clock)
    return seq
