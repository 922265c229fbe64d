"""Reasons, in one line, why a job can never run on the nodes that have registered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlsched.broker.queries.waiting import rooms
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import beside_gpus, memory, of_types
from rlsched.broker.state.nodes import Node
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import SHARED_PARTITION
from rlsched.errors import nearest
from rlsched.models.gpu_types import GENERIC, GPU_FIGURES, canonical_kind


def refused_by_nodes(state: BrokerState, vc: str, demand: Demand) -> str:
    """Return why the registered nodes cannot run a job as requested, in one line; "" if they can.

    A job is also refused if no node has GPUs of its preferred types.
    """
    return unknown_vc(state, vc) or never_runs(state, vc, demand) or _unknown_preference(state, vc, demand)


def unknown_vc(state: BrokerState, vc: str) -> str:
    """Return an error message, in one line, if a submission's VC is unknown, else "".

    Nodes declare VCs (`rlsched node --vc`). If any node declares a VC, a submission must name a declared VC
    or a VC with a quota. Otherwise, any name is accepted.
    """
    if not vc:
        return ""
    known = {name for name in state.cluster.partition_names if name != SHARED_PARTITION}
    if not known:
        return ""
    known |= state.quotas.limited_names("vc")
    if vc in known:
        return ""
    return f"no VC {vc!r}; {nearest(vc, known)}expected one of {', '.join(sorted(known))}, or none"


def never_runs(state: BrokerState, vc: str, demand: Demand) -> str:
    """Return why a job with this demand can never run on the registered nodes; "" if it can run."""
    num_gpus = demand.gpus
    if state.can_ever_run(vc, demand):
        return ""
    if state.is_uneven(vc, num_gpus):
        return (
            f"{num_gpus} GPUs can never be allocated: the engine of the nodes gives a job the same GPU "
            "numbers on every node, so that a job on several nodes needs all GPUs of these nodes"
        )
    if not rooms(state, vc):
        return f"no node serves VC {vc!r}; known: {', '.join(state.cluster.partition_names)}"
    nodes = _nodes_of(state, vc)
    of_type = [node for node in nodes if node.spec.gpus and demand.accepts(node.spec.gpu_type)]
    if demand.gpu_types and not of_type:
        return _no_such_type(demand.gpu_types, nodes)
    gang = f"{num_gpus} GPU{'' if num_gpus == 1 else 's'}"
    of_any_size = msgspec.structs.replace(demand, gpu_memory_mib=0)
    if demand.gpu_memory_mib and state.can_ever_run(vc, of_any_size):
        most = max(node.spec.capabilities.gpu_memory_mib for node in of_type)
        kind = f" of type {of_types(demand)}" if demand.gpu_types else ""
        return (
            f"{gang}{kind} of {memory(demand.gpu_memory_mib)} or more "
            f"can never be given: the largest GPU of its nodes has {memory(most)}"
        )
    if state.can_ever_run(vc, Demand(gpus=num_gpus, gpu_types=demand.gpu_types)):
        largest = max(of_type or nodes, key=lambda node: (node.spec.memory_mib, node.spec.cpus)).spec
        return (
            f"{beside_gpus(demand)} can never be given with {gang}: "
            f"its largest node has {largest.cpus} cores and {memory(largest.memory_mib)} for jobs, and "
            f"{largest.gpus} GPUs"
        )
    if demand.gpu_types:
        return f"{gang} of type {of_types(demand)} can never be given together: {_sizes(of_type)} of these"
    return f"{num_gpus} GPUs can never be given together: {_sizes(nodes)} GPUs"


def _sizes(nodes: Sequence[Node]) -> str:
    sizes = sorted((node.spec.gpus for node in nodes), reverse=True)
    return f"its nodes have {' + '.join(map(str, sizes[:8]))}{' + ...' if len(sizes) > 8 else ''}"


def _nodes_of(state: BrokerState, vc: str) -> list[Node]:
    """Return the registered nodes that a job of this VC may use."""
    inside = {room.partition for room in rooms(state, vc)}
    part_of = state.cluster.arrays.node.part_of
    return [node for node in state.nodes.values() if part_of[node.number] in inside]


def _unknown_preference(state: BrokerState, vc: str, demand: Demand) -> str:
    """Return an error message if no node of this VC has GPUs that the job prefers and accepts, else ""."""
    narrow, nodes = demand.on_preferred, _nodes_of(state, vc)
    if narrow is None or any(node.spec.gpus and narrow.names(node.spec.gpu_type) for node in nodes):
        return ""
    return _no_such_type(demand.preferred_types, nodes, " that it prefers")


def _no_such_type(types: Sequence[str], nodes: Sequence[Node], of_these: str = "") -> str:
    there = sorted({node.spec.gpu_type for node in nodes if node.spec.gpus})
    kinds = sorted({canonical_kind(name) for name in there} - {GENERIC})
    typed = [one for one in types if one not in GPU_FIGURES]
    hint = next(filter(None, (_nearest(one, [*kinds, *there]) for one in typed)), "")
    return (
        f"no node that it may use has GPUs of type {' or '.join(types)}{of_these}: {hint}"
        f"its nodes have {', '.join(there[:8])}{', ...' if len(there) > 8 else ''}"
    )


def _nearest(asked: str, known: Sequence[str]) -> str:
    """Return `did you mean H100? ` with the most similar name, ignoring case; "" if no name is similar."""
    by_lower = {name.lower(): name for name in known}
    found = nearest(asked.lower(), by_lower)
    lower = found.removeprefix("did you mean ").removesuffix("? ")
    return f"did you mean {by_lower[lower]}? " if found else ""
