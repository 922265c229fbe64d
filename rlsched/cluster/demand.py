"""`Demand`: the request of a job for GPUs or a share of a GPU, GPU types, CPU cores and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from rlsched.cluster.spec import NodeGroup, NodeSpec
from rlsched.errors import AllocationError
from rlsched.models.gpu_types import stands_for
from rlsched.models.slice_name import is_slice

WHOLE_GPU_MILLI: Final = 1000
ANY_KIND: Final = -1
"""Bit mask of a job that accepts any GPU type."""
ANY_TYPE: Final = "any"
"""Word for all GPU types, in place of the name of a type."""
MAX_KINDS: Final = 62
"""Maximum number of GPU types in a cluster: a mask of GPU types has one bit per type."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Request of one job. Equal requests form one demand class of a cluster's state.

    Attributes:
        gpus: GPUs of the gang; 0: CPU only.
        share_milli: Requested share of a GPU, thousandths; 1,000: whole GPUs.
        gpu_types: Accepted GPU models, in name order; `stands_for` defines which GPU names match a model.
            Empty: any model (see `accepts`).
        preferred_types: Preferred GPU models, in the same form; empty: no preference.
        cpu_milli: CPU cores of the whole job, thousandths; 0: unknown, not counted.
        memory_mib: Host memory of the whole job, MiB; 0: unknown, not counted.
        gpu_memory_mib: Least memory of each GPU, MiB; 0: any.
        gpu_free_mib: Memory that must be free on each GPU when the job starts, MiB; 0: none. Checked on GPUs
            whose free memory is known (`ClusterShape.limit_gpu_memory`).
        exclusive: Whether the job gets whole nodes: it starts only on nodes without other jobs, and no other
            job starts there while it runs.
        only_preferred: Whether only preferred models are accepted. A job with a preference has two demand
            classes, without and with this flag. The class with the flag places the job if the job fits on
            preferred models.
    """

    gpus: int
    share_milli: int = WHOLE_GPU_MILLI
    gpu_types: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    exclusive: bool = False
    preferred_types: tuple[str, ...] = ()
    only_preferred: bool = False
    gpu_free_mib: int = 0

    @classmethod
    def from_request(
        cls,
        num_gpus: float,
        *,
        gpu_type: str = "",
        prefer: str = "",
        num_cpus: float = math.nan,
        memory_mib: float = math.nan,
        exclusive: bool = False,
    ) -> Demand:
        """Return the demand of a trace row or a submission.

        Args:
            num_gpus: A whole number, or a share between 0 and 1 (rounded up to a thousandth).
            gpu_type: Accepted models, separated by `|`; "" or "any": any model.
            prefer: Preferred models, in the same form; "" or "any": no preference.
            num_cpus: CPU cores of the job, nan if unknown.
            memory_mib: Host memory of the job, MiB, nan if unknown.
            exclusive: Whether the job gets whole nodes.

        Raises:
            AllocationError: more than one GPU is requested, but not a whole number of GPUs.
        """
        if num_gpus > 1 and num_gpus != int(num_gpus):
            raise AllocationError(f"expected whole GPUs or a share of one, got {num_gpus:g}")
        share = 0 < num_gpus < 1
        return cls(
            gpus=1 if share else int(num_gpus),
            share_milli=_milli(num_gpus) if share else WHOLE_GPU_MILLI,
            gpu_types=named_types(gpu_type) if num_gpus else (),
            cpu_milli=_milli(num_cpus) if num_cpus == num_cpus else 0,
            memory_mib=math.ceil(memory_mib) if memory_mib == memory_mib else 0,
            exclusive=exclusive,
            preferred_types=named_types(prefer) if num_gpus else (),
        )

    @property
    def whole(self) -> bool:
        """Whether the job requests whole GPUs."""
        return self.gpus > 0 and self.share_milli == WHOLE_GPU_MILLI

    def names(self, gpu_type: str) -> bool:
        """Return whether the job requests this GPU type, or does not request a type."""
        if self.only_preferred and not self.prefers(gpu_type):
            return False
        return not self.gpu_types or any(stands_for(one, gpu_type) for one in self.gpu_types)

    def prefers(self, gpu_type: str) -> bool:
        """Return whether the job prefers this GPU type, or has no preference."""
        return not self.preferred_types or any(stands_for(one, gpu_type) for one in self.preferred_types)

    def accepts(self, gpu_type: str, gpu_memory_mib: int = 0) -> bool:
        """Return whether the job accepts GPUs of this type with this much memory.

        A memory of 0 means unknown, and is accepted. A job of one GPU gets a whole MIG slice. Gangs get no
        slices: slices have neither a peer-to-peer link (NVIDIA's MIG guide, application considerations;
        quoted from memory) nor CUDA IPC (RAPIDS' guide to MIG). Jobs that request a share of a GPU get no
        slices, because slices are not shared.
        """
        if not self.names(gpu_type):
            return False
        if 0 < gpu_memory_mib < self.gpu_memory_mib:
            return False
        return self.gpus == 0 or not is_slice(gpu_type) or (self.gpus == 1 and self.whole)

    def modest(self, cpu_milli: float, memory_mib: float) -> bool:
        """Return whether the job requests at most `cpu_milli` and `memory_mib` per whole GPU.

        For a share of a GPU, both limits are multiplied by the share. False for a job without GPUs.
        `cpu_milli`: CPU cores, thousandths.
        """
        if not self.gpus:
            return False
        frac = self.share_milli / WHOLE_GPU_MILLI
        return self.cpu_milli_each <= cpu_milli * frac and self.memory_mib_each <= memory_mib * frac

    @property
    def on_preferred(self) -> Demand | None:
        """The same request without the GPU types that are not preferred; None: there is no preference."""
        if not self.preferred_types or self.only_preferred:
            return None
        return msgspec.structs.replace(self, only_preferred=True)

    @property
    def places(self) -> int:
        """Number of equal parts of the job's CPU cores and memory: one per GPU; 1 for a job without GPUs."""
        return max(self.gpus, 1)

    @property
    def cpu_milli_each(self) -> int:
        """CPU cores per place, thousandths, rounded up."""
        return -(-self.cpu_milli // self.places)

    @property
    def memory_mib_each(self) -> int:
        """Host memory per place, MiB, rounded up."""
        return -(-self.memory_mib // self.places)

    def places_on_node(self, node: NodeGroup | NodeSpec) -> int:
        """Return how many places (see `places`) of this job fit on a node if the node is idle.

        Cores or memory of the node are unknown if they are 0.
        """
        if not self.gpus and not (self.cpu_milli and node.cpus):
            return 0
        known_mib = node.gpu_memory_mib if isinstance(node, NodeSpec) else 0
        if not self.accepts(node.gpu_type, known_mib):
            return 0
        fits = node.gpus if self.gpus else 1
        if self.share_milli < WHOLE_GPU_MILLI:
            fits = min(fits, 1)
        if self.cpu_milli and node.cpus:
            fits = min(fits, node.cpus * 1000 // self.cpu_milli_each)
        if self.memory_mib and node.memory_mib:
            fits = min(fits, node.memory_mib // self.memory_mib_each)
        return fits


def named_types(text: str) -> tuple[str, ...]:
    """Return the GPU models that a trace lists, separated by `|`, in name order; empty for "" and "any"."""
    if text.strip().lower() == ANY_TYPE:
        return ()
    return tuple(sorted({name.strip() for name in text.split("|") if name.strip()}))


def within_parts(demands: Sequence[Demand], nodes: Sequence[NodeSpec]) -> bool:
    """Return whether every demand requests at most its GPUs' parts of the cores and memory of each node.

    The part of a GPU is the cores and memory of its node divided by the node's GPUs. False if a demand
    requests no GPUs.
    """
    owners = [node for node in nodes if node.gpus]
    cpus = min((node.cpus * 1000 / node.gpus for node in owners if node.cpus), default=math.inf)
    memory = min((node.memory_mib / node.gpus for node in owners if node.memory_mib), default=math.inf)
    return all(one.modest(cpus, memory) for one in demands)


def plain_demands(demands: Sequence[Demand], nodes: Sequence[NodeSpec]) -> list[bool]:
    """Return for each demand whether counts of free GPUs suffice to place it on these nodes (*plain*).

    Counts suffice for demands that request whole GPUs, accept all GPU types of the cluster, and do not
    request whole nodes. Such demands can also request cores and memory if these never run short
    (`within_parts`).
    """
    owners = [node for node in nodes if node.gpus]
    modest = within_parts(demands, owners)
    here = {(node.gpu_type, node.gpu_memory_mib) for node in owners}
    return [
        one.whole
        and not one.exclusive
        and all(one.accepts(*kind) for kind in here)
        and (modest or not (one.cpu_milli or one.memory_mib))
        for one in demands
    ]


def holds(sizes: Counter[int], places: int) -> bool:
    """Return whether the placement rule *consolidate* can place a gang on these nodes when all are free.

    A gang that fits on the largest node gets one node. A larger gang gets whole nodes, largest first, and one
    more node for the remainder.

    Args:
        sizes: Count of nodes for each node size; the size is the number of places on the idle node.
        places: Number of places that the gang needs.
    """
    sizes = Counter({size: count for size, count in sizes.items() if size > 0 and count > 0})
    if not sizes:
        return False
    if places <= max(sizes):
        return True
    untouched = Counter(sizes)
    for size in sorted(sizes, reverse=True):
        whole = min(sizes[size], places // size)
        untouched[size] -= whole
        places -= whole * size
    return places == 0 or any(count and size >= places for size, count in untouched.items())


def nodes_of_gang(sizes: Counter[int], places: int) -> int:
    """Return how many of these nodes a gang gets when all are free; 0 if the gang does not fit (`holds`)."""
    if not holds(sizes, places):
        return 0
    if places <= max(sizes):
        return 1
    count = 0
    for size in sorted((size for size, of_it in sizes.items() if size > 0 and of_it > 0), reverse=True):
        whole = min(sizes[size], places // size)
        count, places = count + whole, places - whole * size
    return count + (places > 0)


def _milli(value: float) -> int:
    return math.ceil(round(value * 1000, 6))
