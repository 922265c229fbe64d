"""Offered load, defined once; which jobs can ever run on a cluster; clusters scaled to a load or a size."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.errors import InputError
from rlsched.workload.relations import reject_dependents
from rlsched.workload.trace import Trace

NO_GPU = "asks for no GPU (CPU-only jobs are not supported)"
FRACTIONAL = "asks for a share of a GPU (fractional GPUs are not supported)"

Sizes = Counter[int]
"""Nodes of one partition, counted by their GPUs; nodes without GPUs are left out."""


class Runnable(NamedTuple):
    """Which jobs of a trace can run on a cluster if they wait long enough.

    Attributes:
        mask: (J,) whether the job can ever run.
        reasons: (J,) why it cannot, in words; "" where it can.
    """

    mask: NDArray[np.bool_]
    reasons: NDArray[np.str_]

    @property
    def counts(self) -> dict[str, int]:
        """Jobs that can never run, by reason, most frequent first."""
        return dict(Counter(self.reasons[~self.mask].tolist()).most_common())


def partition_sizes(spec: ClusterSpec) -> dict[str | None, Sizes]:
    """Node sizes of each VC's own partition, and under None those of the nodes that serve every VC."""
    sizes: dict[str | None, Sizes] = {}
    for group in spec.nodes:
        if group.count and group.gpus:
            sizes.setdefault(group.vc, Counter())[group.gpus] += group.count
    return sizes


def holds(sizes: Sizes, gpus: int) -> bool:
    """Whether a gang fits these nodes when all of them are free, by the placement rule *consolidate*.

    A gang that is no larger than the largest node goes on one node; a larger one takes whole nodes, largest
    first, and one more node for the remainder.
    """
    if not sizes:
        return False
    if gpus <= max(sizes):
        return True
    untouched = Counter(sizes)
    for size in sorted(sizes, reverse=True):
        whole = min(sizes[size], gpus // size)
        untouched[size] -= whole
        gpus -= whole * size
    return gpus == 0 or any(count and size >= gpus for size, count in untouched.items())


def runnable_mask(trace: Trace, spec: ClusterSpec) -> Runnable:
    """Find the jobs that can never run on this cluster, and say why (ARCHITECTURE, decision 10).

    A node with `vc` serves that VC alone, a node without serves every VC; a gang stays inside one partition.
    """
    sizes = partition_sizes(spec)
    kinds: dict[tuple[str, float], str] = {}
    for vc, gpus in zip(trace.vc.tolist(), trace.num_gpus.tolist(), strict=True):
        if (vc, gpus) not in kinds:
            kinds[vc, gpus] = _reason(vc, gpus, sizes)
    reasons = np.array(
        [kinds[pair] for pair in zip(trace.vc.tolist(), trace.num_gpus.tolist(), strict=True)], dtype=np.str_
    )
    reasons = reject_dependents(trace, reasons)
    return Runnable(reasons == "", reasons)


def _reason(vc: str, gpus: float, sizes: dict[str | None, Sizes]) -> str:
    if gpus == 0:
        return NO_GPU
    if gpus != int(gpus):
        return FRACTIONAL
    usable = [sizes[key] for key in ({vc, None} if vc else {None}) if key in sizes]
    if not usable:
        return f"VC {vc!r} has no nodes" if vc else "has no VC, and every node belongs to one"
    if not any(holds(nodes, int(gpus)) for nodes in usable):
        return f"gang of {int(gpus)} GPUs is larger than {f'VC {vc!r}' if vc else 'the cluster'} holds"
    return ""


def span_s(trace: Trace) -> float:
    """Seconds from the first submission to the last."""
    return float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0


def offered_load(trace: Trace, spec: ClusterSpec) -> float:
    """Offered load, a fraction of the cluster; nan where all jobs are submitted at once.

    load = sum of duration x GPUs of the jobs that can run / (GPUs x (last - first submission))
    """
    mask = runnable_mask(trace, spec).mask
    work = float(np.sum(trace.duration_s[mask] * trace.num_gpus[mask]))
    capacity = spec.num_gpus * span_s(trace)
    return work / capacity if capacity > 0 else float("nan")


def scaled_to_nodes(spec: ClusterSpec, nodes: int) -> ClusterSpec:
    """The same cluster with `nodes` nodes in all.

    One group keeps its kind of node. Several groups are scaled in proportion (largest remainders first), and
    every VC keeps at least one node that has GPUs. No gang is looked at: those that no longer fit are
    rejected by name.

    Raises:
        InputError: fewer nodes than VCs.
    """
    groups = [group for group in spec.nodes if group.count]
    wanted = {group.vc for group in groups if group.gpus}
    if nodes < max(1, len(wanted)):
        raise InputError(
            f"{spec.name}: expected at least {max(1, len(wanted))} nodes (one for each of its "
            f"partitions), got {nodes}"
        )
    counts = _proportional([group.count for group in groups], nodes)
    for vc in wanted:
        own = [k for k, group in enumerate(groups) if group.vc == vc and group.gpus]
        if not any(counts[k] for k in own):
            counts[max(own, key=lambda k: groups[k].count)] += 1
            counts[_most_to_spare(groups, counts)] -= 1
    return _with_counts(spec, groups, counts)


def nodes_for_load(trace: Trace, spec: ClusterSpec, load: float) -> ClusterSpec:
    """The same cluster with each VC's nodes scaled so that its own load is about `load`.

    Every partition (a VC's nodes, or the shared ones) is scaled for the work of the jobs that would use it:
    a VC's own nodes where the gang fits there, else the shared ones; its groups keep their proportions. It
    never holds less than the largest of those gangs, nor less than one node, so the load that comes out may
    be lower: measure it with `offered_load`.

    Raises:
        InputError: a load that is not above 0, or a trace without a runnable job or of one instant only.
    """
    if not (load > 0 and np.isfinite(load)):
        raise InputError(f"expected a load above 0, got {load:g}")
    mask = runnable_mask(trace, spec).mask
    if not mask.any() or span_s(trace) == 0:
        raise InputError(
            f"{trace.name}: expected runnable jobs over some time to scale {spec.name} to a load"
        )
    home = _home_partition(trace, mask, partition_sizes(spec))
    work = trace.duration_s * trace.num_gpus
    groups = [group for group in spec.nodes if group.count and group.gpus]
    counts = [0] * len(groups)
    for vc in {group.vc for group in groups}:
        own = [k for k, group in enumerate(groups) if group.vc == vc]
        here = np.array([key == (vc,) for key in home], dtype=np.bool_)
        gpus_needed = float(work[here].sum()) / (load * span_s(trace))
        largest = int(trace.num_gpus[here].max()) if here.any() else 1
        for k, count in zip(own, _counts_for([groups[k] for k in own], gpus_needed, largest), strict=True):
            counts[k] = count
    return _with_counts(spec, groups, counts)


def _home_partition(
    trace: Trace, mask: NDArray[np.bool_], sizes: dict[str | None, Sizes]
) -> list[tuple[str | None] | None]:
    """The partition each job counts for, in a tuple of its own; None: it can never run."""
    return [
        None if not ok else (vc,) if vc in sizes and holds(sizes[vc], int(gpus)) else (None,)
        for ok, vc, gpus in zip(mask.tolist(), trace.vc.tolist(), trace.num_gpus.tolist(), strict=True)
    ]


def _counts_for(groups: list[NodeGroup], gpus_needed: float, largest: int) -> list[int]:
    """Nodes of each group, in proportion: about `gpus_needed` GPUs, and room for the largest gang."""
    before = [group.count for group in groups]
    gpus_before = sum(group.count * group.gpus for group in groups)
    total = max(1, round(sum(before) * gpus_needed / gpus_before))
    while True:
        counts = _proportional(before, total)
        sizes: Sizes = Counter()
        for group, count in zip(groups, counts, strict=True):
            if count:
                sizes[group.gpus] += count
        if holds(sizes, largest):
            return counts
        total += 1


def _proportional(weights: list[int], total: int) -> list[int]:
    """Integers that sum to `total`, in proportion to the weights; largest remainders first, then order."""
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda k: (counts[k] - exact[k], k))
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def _most_to_spare(groups: list[NodeGroup], counts: list[int]) -> int:
    """The group to take a node from: nodes without GPUs first, then the VC that keeps most nodes."""
    nodes_of: Counter[str | None] = Counter()
    for group, count in zip(groups, counts, strict=True):
        nodes_of[group.vc] += count if group.gpus else 0
    spare = [
        k for k, count in enumerate(counts) if count and (groups[k].gpus == 0 or nodes_of[groups[k].vc] > 1)
    ]
    return max(spare, key=lambda k: (groups[k].gpus == 0, nodes_of[groups[k].vc], counts[k]))


def _with_counts(spec: ClusterSpec, groups: list[NodeGroup], counts: list[int]) -> ClusterSpec:
    nodes = tuple(
        msgspec.structs.replace(group, count=count)
        for group, count in zip(groups, counts, strict=True)
        if count
    )
    return ClusterSpec(name=spec.name, nodes=nodes)
