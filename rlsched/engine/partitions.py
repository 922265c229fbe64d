"""Nodes of partitions in the facts of a Slurm cluster, and GPUs that other jobs hold there. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlsched.engine.facts import Facts, SlurmNode
from rlsched.wire.messages import Holding

LONG_S = 300 * 86_400.0
"""A job with a longer time limit counts as unlimited, seconds."""


def nodes_with_gpus(facts: Facts, partitions: Sequence[str]) -> dict[str, tuple[SlurmNode, str]]:
    """Nodes with GPUs, by name, each with the first of the partitions that it is in."""
    found = {}
    for node in facts.nodes.values():
        partition = next((name for name in partitions if name in node.partitions), "")
        if partition and node.gpus:
            found[node.name] = (node, partition)
    return found


def unlike(facts: Facts, partitions: Sequence[str], do: str) -> list[str]:
    """Reasons why these partitions cannot be decided for: unlike nodes in one, or a node in two of them.

    Args:
        facts: Facts of the Slurm.
        partitions: Their names.
        do: The action on the partitions, such as `hand over`.
    """
    found, sizes = [], dict[str, SlurmNode]()
    for node, partition in nodes_with_gpus(facts, partitions).values():
        first = sizes.setdefault(partition, node)
        if first.gpus != node.gpus:
            found.append(
                f"node {node.name}: {node.gpus} GPUs, and {first.name} of the same partition {partition} has "
                f"{first.gpus}: {do} partitions of nodes that are alike"
            )
        both = [name for name in partitions if name in node.partitions]
        if len(both) > 1:
            found.append(f"node {node.name}: it is in partitions {' and '.join(both)}: {do} one of them")
    return found


def empty(facts: Facts, partitions: Sequence[str]) -> list[str]:
    """Partitions without a node to follow, a line for each."""
    known = {partition for _, partition in nodes_with_gpus(facts, partitions).values()}
    return [
        f"partition {name}: no node with a GPU in it; `sinfo -o '%R %G'` lists them"
        for name in partitions
        if name not in known
    ]


def held_by_others(facts: Facts, ours: Collection[str]) -> dict[str, list[Holding]]:
    """GPUs of running jobs that are not among `ours`, by node."""
    found: dict[str, list[Holding]] = {}
    for job in facts.jobs.values():
        if not job.runs or job.key in ours:
            continue
        for place, name in enumerate(job.nodes):
            node = facts.nodes.get(name)
            gpus = job.gpus[place] if job.gpus else []
            gpus = list(range(node.gpus)) if node is not None and job.is_exclusive else gpus
            if gpus:
                until_s = job.end_s if facts.now_s < job.end_s < facts.now_s + LONG_S else None
                by = f"Slurm's job {job.key} of {job.user}"
                found.setdefault(name, []).append(Holding(by=by, gpus=gpus, until_s=until_s))
    return found
