"""Offered load of a trace, jobs that can never run on a cluster, and clusters scaled to a load or a size."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import Demand, holds
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.errors import InputError
from rlsched.workload.distinct import distinct_rows
from rlsched.workload.trace import Trace, reject_dependents

NO_GPU = "asks for no GPU, and its CPU cores are not known"
NO_CPU = "asks only for CPU cores, and the cores of the nodes are not known"


class Runnable(NamedTuple):
    """Result of `runnable_mask`: which jobs of a trace can run on a cluster when the cluster is empty.

    Attributes:
        mask: (J,) whether each job can run.
        reasons: (J,) reason why the job can never run, as text; "" if it can run.
    """

    mask: NDArray[np.bool_]
    reasons: NDArray[np.str_]

    @property
    def counts(self) -> dict[str, int]:
        """Count the jobs that can never run, by reason, most frequent first."""
        return dict(Counter(self.reasons[~self.mask].tolist()).most_common())


def partition_sizes(spec: ClusterSpec) -> dict[str | None, Counter[int]]:
    """Return a dict: VC -> (GPUs per node -> number of nodes). Nodes without GPUs do not count.

    Key None: the nodes that serve all VCs.
    """
    found: dict[str | None, Counter[int]] = {}
    for vc, groups in partition_groups(spec).items():
        for group in groups:
            if group.gpus:
                found.setdefault(vc, Counter())[group.gpus] += group.count
    return found


def partition_groups(spec: ClusterSpec) -> dict[str | None, list[NodeGroup]]:
    """Return a dict: VC -> its node groups that have nodes. Key None: groups that serve all VCs."""
    groups: dict[str | None, list[NodeGroup]] = {}
    for group in spec.nodes:
        if group.count:
            groups.setdefault(group.vc, []).append(group)
    return groups


_demands_of: WeakKeyDictionary[Trace, tuple[list[Demand], NDArray[np.intp]]] = WeakKeyDictionary()
"""Results of `trace_demands` by trace, cached while the trace exists."""


def trace_demands(trace: Trace) -> tuple[list[Demand], NDArray[np.intp]]:
    """Return the list of the distinct resource demands of a trace, and each job's (J,) index in the list."""
    known = _demands_of.get(trace)
    if known is None:
        known = _demands_of[trace] = _find_demands(trace)
    return known


def _find_demands(trace: Trace) -> tuple[list[Demand], NDArray[np.intp]]:
    columns = [trace.num_gpus, trace.num_cpus]
    columns += [np.asarray(trace.extra["memory_mib"], np.float64)] if "memory_mib" in trace.extra else []
    texts = {name: trace.extra[name] for name in ("exclusive", "prefer") if name in trace.extra}
    first, which = distinct_rows([*columns, trace.gpu_type, *texts.values()])
    exclusive, prefer = texts.get("exclusive"), texts.get("prefer")
    memory_mib = columns[2] if len(columns) > 2 else np.full(len(trace), np.nan)
    demands = [
        Demand.from_request(
            float(trace.num_gpus[row]),
            gpu_type=str(trace.gpu_type[row]),
            num_cpus=float(trace.num_cpus[row]),
            memory_mib=float(memory_mib[row]),
            exclusive=exclusive is not None and str(exclusive[row]) == "true",
            prefer="" if prefer is None else str(prefer[row]),
        )
        for row in first.tolist()
    ]
    return demands, which


def runnable_mask(trace: Trace, spec: ClusterSpec) -> Runnable:
    """Find the jobs that can never run on this cluster, and the reason for each of them.

    A node with `vc` serves only that VC, a node without `vc` serves every VC. A gang (a job with several
    GPUs) never runs on both kinds at once (docs/explanation/design.md, decision 10).
    """
    groups = partition_groups(spec)
    demands, which = trace_demands(trace)
    first, kind = distinct_rows([trace.vc, which])
    of_kind = [_reason(str(trace.vc[row]), demands[which[row]], groups) for row in first.tolist()]
    reasons = reject_dependents(trace, np.array(of_kind, dtype=np.str_)[kind])
    return Runnable(reasons == "", reasons)


def _holds(groups: list[NodeGroup], demand: Demand) -> bool:
    """Return whether a job with this demand fits on the nodes of `groups` if all these nodes are free."""
    sizes: Counter[int] = Counter()
    for group in groups:
        sizes[demand.places_on_node(group)] += group.count
    return holds(sizes, demand.places)


def _reason(vc: str, demand: Demand, groups: dict[str | None, list[NodeGroup]]) -> str:
    if not demand.gpus and not demand.cpu_milli:
        return NO_GPU
    usable = [groups[key] for key in ({vc, None} if vc else {None}) if key in groups]
    if demand.gpus:
        usable = [nodes for nodes in usable if any(group.gpus for group in nodes)]
    if not usable:
        return f"VC {vc!r} has no nodes" if vc else "has no VC, and every node belongs to one"
    if any(_holds(nodes, demand) for nodes in usable):
        return ""
    if not demand.gpus:
        known = any(group.cpus for nodes in usable for group in nodes)
        return _too_large(vc, demand) if known else NO_CPU
    kinds = {group.gpu_type for nodes in usable for group in nodes if group.gpus}
    if not any(demand.names(kind) for kind in kinds):
        return (
            f"asks for GPU type {'|'.join(demand.gpu_types)}, and there are {', '.join(sorted(kinds))} only"
        )
    if not any(demand.accepts(kind) for kind in kinds):
        asks = f"a gang of {demand.gpus} GPUs" if demand.gpus > 1 else "a share of a GPU"
        return f"asks for {asks}, and there are only MIG slices, which only jobs of one GPU can use"
    if any(_holds(nodes, Demand(gpus=demand.gpus)) for nodes in usable):
        return _too_large(vc, demand)
    return f"gang of {demand.gpus} GPUs is larger than {f'VC {vc!r}' if vc else 'the cluster'} holds"


def _too_large(vc: str, demand: Demand) -> str:
    """Return the reason for a job that cannot run because no nodes meet all its requests together."""
    asks = [f"{demand.gpus} GPUs" if demand.gpus else ""]
    asks += ["|".join(demand.gpu_types), f"{demand.cpu_milli / 1000:g} cores" if demand.cpu_milli else ""]
    asks += [f"{demand.memory_mib} MiB" if demand.memory_mib else ""]
    where = f"VC {vc!r}" if vc else "the cluster"
    return f"no nodes of {where} have all that it asks for: {', '.join(one for one in asks if one)}"


def span_s(trace: Trace) -> float:
    """Return the seconds from the first submission to the last."""
    return float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0


def offered_load(trace: Trace, spec: ClusterSpec) -> float:
    """Return the offered load, a fraction of the cluster; nan if all jobs are submitted at one instant.

    load = (sum of duration x GPUs of the jobs that can run)
    / (GPUs of the cluster x (last submission - first submission))
    """
    mask = runnable_mask(trace, spec).mask
    work = float(np.sum(trace.duration_s[mask] * trace.num_gpus[mask]))
    capacity = spec.num_gpus * span_s(trace)
    return work / capacity if capacity > 0 else float("nan")


def crowded_vcs(trace: Trace, spec: ClusterSpec) -> dict[str, float]:
    """Return the overloaded VCs, highest load first: VC -> GPU-time of its jobs / GPU-time of its nodes.

    The dict is empty if some nodes serve every VC, because the part that each VC uses is unknown.
    """
    groups, span = partition_groups(spec), span_s(trace)
    if None in groups or span <= 0:
        return {}
    mask = runnable_mask(trace, spec).mask
    asked_s = trace.duration_s * trace.num_gpus * mask
    found = {}
    for vc, nodes in groups.items():
        gpus = sum(group.count * group.gpus for group in nodes)
        load = float(np.sum(asked_s[trace.vc == vc])) / (gpus * span) if gpus else 0.0
        if load > 1.0:
            found[str(vc)] = load
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def scaled_to_nodes(spec: ClusterSpec, nodes: int) -> ClusterSpec:
    """Return the cluster with `nodes` nodes in total.

    Node groups are scaled in proportion; the groups with the largest remainders are rounded up. Every VC that
    has nodes with GPUs keeps at least one of them. Large gangs may no longer fit.

    Raises:
        InputError: `nodes` is smaller than the number of VCs that have nodes with GPUs.
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
    """Return the cluster with each VC's nodes scaled so that the VC's own load is about `load`.

    Each partition (the nodes of a VC, or the nodes that serve all VCs) is scaled for the GPU-time of its
    jobs. A job belongs to the nodes of its VC if its gang fits there, else to the nodes that serve all VCs.
    A partition keeps the proportions of its node groups, and room for its largest gang. The resulting load
    can therefore be lower than `load`: compute it with `offered_load`.

    Raises:
        InputError: the load is not above 0, the trace has no runnable job, or all jobs are submitted at one
            instant.
    """
    if not (load > 0 and np.isfinite(load)):
        raise InputError(f"expected a load above 0, got {load:g}")
    mask = runnable_mask(trace, spec).mask
    if not mask.any() or span_s(trace) == 0:
        raise InputError(
            f"{trace.name}: a load on {spec.name} needs jobs that can run and are submitted at two or more "
            "different times"
        )
    home = _home_partition(trace, mask, partition_groups(spec))
    work = trace.duration_s * trace.num_gpus
    demands, which = trace_demands(trace)
    groups = [group for group in spec.nodes if group.count]
    counts = [0] * len(groups)
    for vc in {group.vc for group in groups}:
        own = [k for k, group in enumerate(groups) if group.vc == vc]
        here = np.array([key == (vc,) for key in home], dtype=np.bool_)
        gpus_needed = float(work[here].sum()) / (load * span_s(trace))
        wanted = [demands[number] for number in np.unique(which[here]).tolist()]
        for k, count in zip(own, _counts_for([groups[k] for k in own], gpus_needed, wanted), strict=True):
            counts[k] = count
    return _with_counts(spec, groups, counts)


def _home_partition(
    trace: Trace, mask: NDArray[np.bool_], groups: dict[str | None, list[NodeGroup]]
) -> list[tuple[str | None] | None]:
    """Return the partition of each job: `(vc,)` for the nodes of a VC, `(None,)` for the nodes that serve all
    VCs, None for a job that can never run.
    """
    demands, which = trace_demands(trace)
    first, kind = distinct_rows([trace.vc, which])
    homes: list[tuple[str | None]] = []
    for row in first.tolist():
        vc = str(trace.vc[row])
        homes.append((vc,) if vc in groups and _holds(groups[vc], demands[which[row]]) else (None,))
    return [homes[number] if ok else None for ok, number in zip(mask.tolist(), kind.tolist(), strict=True)]


def _counts_for(groups: list[NodeGroup], gpus_needed: float, wanted: list[Demand]) -> list[int]:
    """Return the number of nodes of each group, scaled so that all groups have about `gpus_needed` GPUs.

    The proportions of the groups are kept. If a job with a demand in `wanted` does not fit on the idle nodes,
    nodes are added until it fits.
    """
    before = [group.count for group in groups]
    gpus_before = sum(group.count * group.gpus for group in groups)
    if gpus_before == 0:
        return before
    total = max(1, round(sum(before) * gpus_needed / gpus_before))
    while True:
        counts = _proportional(before, total)
        sized = [
            msgspec.structs.replace(group, count=count) for group, count in zip(groups, counts, strict=True)
        ]
        if sum(group.count * group.gpus for group in sized) and all(_holds(sized, one) for one in wanted):
            return counts
        total += 1


def _proportional(weights: list[int], total: int) -> list[int]:
    """Return integers in proportion to the weights, with the sum `total`; the largest remainders round up."""
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda k: (counts[k] - exact[k], k))
    for k in by_remainder[: total - sum(counts)]:
        counts[k] += 1
    return counts


def _most_to_spare(groups: list[NodeGroup], counts: list[int]) -> int:
    """Return the index of the node group from which to remove a node, so that no VC loses its last GPU node.

    This is a group without GPUs if there is one, else a group of the VC with the most GPU nodes.
    """
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
    return msgspec.structs.replace(spec, nodes=nodes)
