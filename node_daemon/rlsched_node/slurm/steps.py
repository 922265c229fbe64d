"""The server's state of steps and nodes, and the message that starts the tasks of a step on a node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlsched_node.slurm import outputs
from rlsched_node.slurm.frames import Head, Link
from rlsched_node.slurm.hostlist import counted
from rlsched_node.slurm.plans import JobNode, Plan, Use


@dataclass(slots=True)
class Node:
    """A node of the job.

    Attributes:
        shape: Names, GPUs and slots of the node.
        link: Connection to its agent; None: not connected, or the server's own node.
        env: Environment of tasks on the node, without a step's changes; None: its agent is not connected yet.
        used: GPUs and slots of the node that running steps use.
    """

    shape: JobNode
    link: Link | None = None
    env: Mapping[str, str] | None = None
    used: Use = field(default_factory=Use)


@dataclass(slots=True)
class Step:
    """A step.

    Attributes:
        number: ID of the step (`SLURM_STEP_ID`).
        client: Connection to its `srun`.
        request: The request of `srun`.
        plan: Plan of the step; None: the step waits.
        running: IDs of the tasks that have not ended, by index of the node in the job.
        code: Highest exit code of the ended tasks.
        input_waits: Number of nodes that have not read the last piece of input.
        is_ending: Its tasks have received SIGTERM, and get SIGKILL later.
        was_announced: `srun` has printed why the step waits.
    """

    number: int
    client: Link
    request: Head
    plan: Plan | None = None
    running: dict[int, set[int]] = field(default_factory=dict)
    code: int = 0
    input_waits: int = 0
    is_ending: bool = False
    was_announced: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Options of `srun`."""
        return self.request["options"]  # type: ignore[no-any-return]


def start_message(step: Step, found: Plan, place: int, nodes: Sequence[Node]) -> Head:
    """Return the message that starts the tasks of a step on one of its nodes.

    Args:
        step: The step.
        found: The plan of the step.
        place: Index of the node among the nodes of the step.
        nodes: All nodes of the job.
    """
    request, options, rank = step.request, step.options, found.nodes[place]
    node = nodes[rank]
    base = nodes[request["rank"]].env or {}
    env: dict[str, str] = request["env"]
    values = outputs.step_values(env, step.number) | {"n": str(place), "N": node.shape.name}
    shown = (node.env or {}).get("CUDA_VISIBLE_DEVICES", "").split(",")
    tasks = []
    for local, (number, gpus) in enumerate(zip(found.tasks[place], found.gpus[place], strict=True)):
        files = [
            outputs.of_task(pattern, number, values | {"t": str(number)}, request["cwd"])
            for pattern in outputs.patterns(options)
        ]
        own = {
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": str(local),
            "CUDA_VISIBLE_DEVICES": ",".join(shown[gpu] for gpu in gpus if gpu < len(shown)),
        }
        tasks.append({"number": number, "env": own, "stdout": files[0], "stderr": files[1]})
    return {
        "do": "start",
        "step": step.number,
        "node": node.shape.name,
        "command": request["command"],
        "cwd": os.path.join(request["cwd"], options["chdir"] or ""),
        "umask": request["umask"],
        "env": {name: value for name, value in env.items() if base.get(name) != value},
        "unset": [name for name in base if name not in env],
        "only": request["only"],
        "set": request["set"] | _variables(step, found, place, nodes),
        "input": request["input"],
        "appends": options["open_mode"] == "append",
        "tasks": tasks,
    }


def _variables(step: Step, found: Plan, place: int, nodes: Sequence[Node]) -> dict[str, str]:
    """Return Slurm's variables that the tasks of a step on one node have in common."""
    num_tasks, per_node = str(sum(found.counts)), counted(found.counts)
    names = ",".join(nodes[rank].shape.name for rank in found.nodes)
    gpus = {gpu for task in found.gpus[place] for gpu in task}
    variables = {
        "SLURM_STEP_ID": str(step.number),
        "SLURM_STEPID": str(step.number),
        "SLURM_NTASKS": num_tasks,
        "SLURM_NPROCS": num_tasks,
        "SLURM_STEP_NUM_TASKS": num_tasks,
        "SLURM_STEP_NUM_NODES": str(len(found.nodes)),
        "SLURM_NNODES": str(len(found.nodes)),
        "SLURM_NODELIST": names,
        "SLURM_STEP_NODELIST": names,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_NODEID": str(place),
        "SLURM_GTIDS": ",".join(map(str, found.tasks[place])),
        "SLURM_GPUS_ON_NODE": str(len(gpus)),
        "SLURM_DISTRIBUTION": step.options["distribution"],
    }
    cores, per_node_asked = step.options["cpus_per_task"], step.options["ntasks_per_node"]
    if cores is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(cores)
    if per_node_asked is not None:
        variables["SLURM_NTASKS_PER_NODE"] = str(per_node_asked)
    return variables
