"""Finds the nodes of partitions, and the GPUs that other jobs use, in facts (Slurm's state at one query)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlsched.engine.facts import Facts, SlurmNode
from rlsched.wire.messages import Holding

LONG_S = 300 * 86_400.0
"""Time limit above which a job counts as unlimited, seconds."""


def nodes_with_gpus(facts: Facts, partitions: Sequence[str]) -> dict[str, tuple[SlurmNode, str]]:
    """Return a dict: name of a node with GPUs -> (node, first partition in `partitions` with this node)."""
    found = {}
    for node in facts.nodes.values():
        partition = next((name for name in partitions if name in node.partitions), "")
        if partition and node.gpus:
            found[node.name] = (node, partition)
    return found


def unlike(facts: Facts, partitions: Sequence[str], do: str) -> list[str]:
    """Return the reasons why the broker cannot schedule these partitions.

    All nodes of a partition must have the same number of GPUs, and no node may be in two of the partitions.

    Args:
        facts: Facts of Slurm.
        partitions: Names of the partitions.
        do: Verb in the messages for the action on the partitions, such as `hand over`.
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
    """Return a line of text for each partition that has no node with a GPU."""
    known = {partition for _, partition in nodes_with_gpus(facts, partitions).values()}
    return [
        f"partition {name}: no node with a GPU in it; `sinfo -o '%R %G'` lists them"
        for name in partitions
        if name not in known
    ]


def held_by_others(facts: Facts, ours: Collection[str]) -> dict[str, list[Holding]]:
    """Return, by node, the GPUs used by running jobs whose keys are not in `ours`."""
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
