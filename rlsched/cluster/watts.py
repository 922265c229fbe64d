"""Sets the power of nodes without their GPUs: fields of `NODE` that exist only in states with models."""

from __future__ import annotations

from rlsched.cluster.arrays import Records
from rlsched.cluster.spec import NodeGroup, NodeSpec
from rlsched.models.node_power import PowerByState
from rlsched.models.power import NodePower, gpu_models
from rlsched.models.slice_name import whole_type


def unmade_w(node: NodeGroup | NodeSpec) -> float:
    """Return the idle power of the part of a node's GPUs that belongs to no MIG slice, W."""
    if not node.slices:
        return 0.0
    whole, cut = gpu_models([whole_type(node.gpu_type), node.gpu_type]).idle_w.tolist()
    return float(node.devices * whole - node.gpus * cut)


def set_node_watts(rows: Records, node: NodeGroup | NodeSpec, power: NodePower) -> None:
    """Set the power of nodes, without the power of their GPUs.

    Args:
        rows: (n,) NODE, entries of n nodes with the same description.
        node: This description.
        power: Figures of the power of a node.
    """
    rows.idle_w = power.idle_w(node.cpus, node.devices, 0.0) + unmade_w(node)
    rows.core_w = power.busy_core_w
    by_state = PowerByState.from_gpus(power, node.devices, node.gpu_type, node.cpus)
    rows.asleep_w, rows.boot_w = by_state.asleep_w, by_state.boot_w
