"""Plans a step: chooses its nodes, the ID of each task (`SLURM_PROCID`), and the GPUs of each task."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from rlsched_node.slurm.hostlist import expanded


class PlanError(Exception):
    """The job cannot run a step with these options."""


class JobNode(NamedTuple):
    """A node of the job.

    Attributes:
        name: Name or address of the node in scripts (`reachable_names`).
        alias: The node's name in rlsched.
        gpus: Number of the job's GPUs on the node.
        slots: Number of tasks that the job requested for the node. Steps with `--exact` or `--exclusive` run
            at most this number of tasks there at the same time.
    """

    name: str
    alias: str
    gpus: int
    slots: int = 1


class Use(NamedTuple):
    """GPUs and slots of a node that running steps use. A GPU is an index among the job's GPUs on the node."""

    gpus: Collection[int] = ()
    slots: int = 0


class Plan(NamedTuple):
    """The plan of a step. Each list has an entry for each node of the step.

    Attributes:
        nodes: Index of the node among the nodes of the job.
        tasks: IDs of the tasks on the node.
        gpus: For each task on the node, indices of its GPUs among the job's GPUs on the node.
        taken: GPUs and slots of the node that other steps cannot use while this step runs.
    """

    nodes: list[int]
    tasks: list[list[int]]
    gpus: list[list[list[int]]]
    taken: list[Use]

    @property
    def counts(self) -> list[int]:
        """Number of tasks on each node."""
        return [len(tasks) for tasks in self.tasks]


def spread(num_tasks: int, weights: Sequence[int]) -> list[int]:
    """Return the number of tasks for each node: at least 1, and nearly in proportion to the weights.

    With equal weights, the first nodes get the remainder, as under Slurm.

    Args:
        num_tasks: Number of tasks, at least one for each node.
        weights: Weights of the nodes, for example the number of GPUs of each node.
    """
    counts = [1] * len(weights)
    heap = [(1.5 / max(weight, 1), node) for node, weight in enumerate(weights)]
    heapq.heapify(heap)
    for _ in range(num_tasks - len(weights)):
        _, node = heap[0]
        counts[node] += 1
        heapq.heapreplace(heap, ((counts[node] + 0.5) / max(weights[node], 1), node))
    return counts


def numbered(counts: Sequence[int], distribution: str) -> list[list[int]]:
    """Return the IDs of the tasks on each node, for the distribution `block` or `cyclic`.

    `counts`: number of tasks on each node.
    """
    if distribution == "block":
        first = [sum(counts[:node]) for node in range(len(counts))]
        return [list(range(start, start + count)) for start, count in zip(first, counts, strict=True)]
    tasks: list[list[int]] = [[] for _ in counts]
    number = 0
    for turn in range(max(counts)):
        for node, count in enumerate(counts):
            if turn < count:
                tasks[node].append(number)
                number += 1
    return tasks


def plan(
    options: dict[str, Any], job: Sequence[JobNode], used: Sequence[Use], asked_nodes: int = 0
) -> Plan | None:
    """Return the plan of a step; None if the step has to wait for GPUs or slots of other steps.

    Args:
        options: Options of `srun`.
        job: The nodes of the job.
        used: GPUs and slots that running steps use, for each node of the job.
        asked_nodes: Number of nodes that the job requested; 0: it requested none.

    Raises:
        PlanError: the job can never run the step.
    """
    allowed = _allowed(options, job)
    num_nodes, num_tasks = _size(options, len(allowed), len(job), asked_nodes or len(job))
    is_whole = num_nodes == len(allowed)
    counts = spread(num_tasks, [job[node].gpus for node in allowed] if is_whole else [1] * num_nodes)
    needs = _gpus_needed(options, counts)
    nodes = _chosen(options, allowed, counts, needs, job, used)
    if nodes is None:
        return None
    tasks = numbered(counts, options["distribution"])
    gpus, taken = [], []
    for node, mine, need in zip(nodes, tasks, needs, strict=True):
        free = _positions(options, job[node], used[node], need)
        gpus.append([_of_task(options, free, local) for local in range(len(mine))])
        holds = need is not None and not options["overlap"]
        taken.append(Use(free if holds else (), _slots(options, job[node], len(mine))))
    return Plan(nodes, tasks, gpus, taken)


def _allowed(options: dict[str, Any], job: Sequence[JobNode]) -> list[int]:
    """Return the indices of the nodes that the step may use, in the order in which they are tried.

    If `--nodes` requests more nodes than `--nodelist` names, the other nodes follow the named nodes.
    """
    excluded = set(_numbers("--exclude", options["exclude"], job))
    named = set(_numbers("--nodelist", options["nodelist"], job))
    found = [node for node in range(options["relative"] or 0, len(job)) if node not in excluded]
    if not found or named - set(found):
        raise PlanError("the options leave no node, or name a node that --exclude or --relative leaves out")
    if named and (options["nodes"] or 0) <= len(named):
        return sorted(named)
    return sorted(found, key=lambda node: (node not in named, node))


def _numbers(option: str, text: str | None, job: Sequence[JobNode]) -> list[int]:
    """Return the indices of the nodes in a list of names. `option`: the name of the option, for errors."""
    if not text:
        return []
    try:
        names = expanded(text)
    except ValueError as error:
        raise PlanError(f"{option} {text!r}: {error}") from error
    known = {name: number for number, node in enumerate(job) for name in (node.alias, node.name)}
    for name in names:
        if name not in known:
            raise PlanError(
                f"{option}: {name} is not a node of this job: {', '.join(one.name for one in job)}"
            )
    return [known[name] for name in names]


def _size(options: dict[str, Any], allowed: int, actual: int, asked: int) -> tuple[int, int]:
    """Return the number of nodes and the number of tasks of a step.

    The job may have more or fewer nodes than it requested. A step that requests the same number as the job,
    or no number, then uses all nodes. Its total number of tasks is unchanged, except with one task per node.
    """
    nodes = options["nodes"]
    is_as_asked = asked != actual and allowed == actual and nodes in (None, asked)
    if is_as_asked:
        nodes = None
    if nodes is not None and nodes > allowed:
        raise PlanError(f"--nodes {nodes}: expected at most the {allowed} nodes that the step may use")
    num_nodes = nodes or allowed
    per_node = options["ntasks_per_node"]
    if per_node is None and (options["nodes"] or options["nodelist"]):
        per_node = options["job_ntasks_per_node"]
    if options["ntasks"] is not None:
        num_tasks = int(options["ntasks"])
    elif per_node is not None:
        num_tasks = per_node * (asked if is_as_asked and per_node > 1 else num_nodes)
    else:
        num_tasks = options["job_ntasks"] or num_nodes
    return min(num_nodes, num_tasks), num_tasks


def _gpus_needed(options: dict[str, Any], counts: Sequence[int]) -> list[int | None]:
    """Return the number of GPUs that the step requests on each node; None: the step shares all GPUs."""
    if options["gpus_per_node"] is not None:
        return [options["gpus_per_node"]] * len(counts)
    if options["gpus"] is not None:
        each, left = divmod(int(options["gpus"]), len(counts))
        return [each + (node < left) for node in range(len(counts))]
    if options["gpus_per_task"] is not None:
        return [options["gpus_per_task"] * count for count in counts]
    return [None] * len(counts)


def _chosen(
    options: dict[str, Any],
    allowed: list[int],
    counts: Sequence[int],
    needs: Sequence[int | None],
    job: Sequence[JobNode],
    used: Sequence[Use],
) -> list[int] | None:
    """Return the first of the `allowed` nodes with enough free GPUs and slots; None: too few are free now."""

    def fits(node: int, place: int, taken: Use) -> bool:
        free = job[node].gpus - (0 if options["overlap"] else len(taken.gpus))
        return (needs[place] or 0) <= free and (
            _slots(options, job[node], counts[place]) <= job[node].slots - taken.slots
        )

    found: list[int] = []
    possible = 0
    for node in allowed:
        if possible < len(counts) and fits(node, possible, Use()):
            possible += 1
        if len(found) < len(counts) and fits(node, len(found), used[node]):
            found.append(node)
    if possible < len(counts):
        most = max(need or 0 for need in needs)
        have = ", ".join(f"{job[node].name} {job[node].gpus}" for node in allowed)
        raise PlanError(
            f"the nodes of this job cannot run the step, which needs up to {most} GPUs per node; GPUs: {have}"
        )
    return found if len(found) == len(counts) else None


def _slots(options: dict[str, Any], node: JobNode, count: int) -> int:
    return min(count, node.slots) if options["exclusive"] and not options["overlap"] else 0


def _positions(options: dict[str, Any], node: JobNode, used: Use, need: int | None) -> list[int]:
    """Return the step's GPUs on a node, as indices among the job's GPUs on the node."""
    if need is None:
        return list(range(node.gpus))
    taken = () if options["overlap"] else used.gpus
    return [gpu for gpu in range(node.gpus) if gpu not in taken][:need]


def _of_task(options: dict[str, Any], gpus: list[int], local: int) -> list[int]:
    """Return the GPUs of a task. `gpus`: the step's GPUs on the node. `local`: index of the task on the node.

    `--gpus-per-task` without `--gpu-bind` means `--gpu-bind=per_task`, as under Slurm.
    """
    kind, _, value = options["gpu_bind"].partition(":")
    if not kind and options["gpus_per_task"]:
        kind, value = "per_task", str(options["gpus_per_task"])
    if not gpus or not kind:
        return gpus
    if kind == "per_task":
        size = int(value)
        return [gpus[place % len(gpus)] for place in range(local * size, (local + 1) * size)][: len(gpus)]
    if kind == "single":
        return [gpus[local // int(value) % len(gpus)]]
    wanted = value.split(",")
    if kind == "map_gpu":
        places = [int(wanted[local % len(wanted)])]
    else:
        mask = int(wanted[local % len(wanted)], 16)
        places = [place for place in range(mask.bit_length()) if mask >> place & 1]
    if max(places, default=0) >= len(gpus):
        raise PlanError(f"--gpu-bind {options['gpu_bind']}: expected GPU indices below {len(gpus)}")
    return [gpus[place] for place in places]
