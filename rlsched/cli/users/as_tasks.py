"""`rlsched run` with tasks: the job's command is an `srun` on the job's first node, as in a job script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from rlsched.cli.users.batch_script import slurms_variables

_KEY = "RLSCHED_STEPS_KEY="


class AsTasks(NamedTuple):
    """A job of `rlsched run`.

    Attributes:
        command: Command of the job.
        asked: The options of the job.
        labelled: Whether lines begin with the rank, as in `follow`; False if `srun` prints the lines.
        nodes: Value of `--nodes` if the command runs once on each node; 0: not given, or `srun` is used.
    """

    command: list[str]
    asked: dict[str, Any]
    labelled: bool | None
    nodes: int

    def note_on_nodes(self, actual: int) -> str:
        """Return a note for the user if the job has another number of nodes than `--nodes`; else ""."""
        if self.nodes in (0, actual):
            return ""
        has = "1 node" if actual == 1 else f"{actual} nodes"
        return f"note: --nodes {self.nodes}: the job has {has}, because the broker chooses the nodes by GPUs"


def as_tasks(words: Sequence[str], asked: Mapping[str, Any], *, label: bool, has_launcher: bool) -> AsTasks:
    """Return the job that runs a command; `srun` runs the command if options request tasks.

    The command of a script that starts steps (`srun`) is not changed. A command with `--launch`, or without
    options that request or label tasks, runs once on each node.

    Args:
        words: The command.
        asked: The options of the job.
        label: Whether lines of the output begin with the number of their task.
        has_launcher: Whether `--launch` is given.
    """
    found = dict(asked)
    if any(one.startswith(_KEY) for one in found["env"]):
        found["env"] = (*found["env"], *(["SLURM_LABELIO=1"] if label else ()))
        return AsTasks(list(words), found, None, 0)
    wants_tasks = label or found["ntasks"] or found["ntasks_per_node"]
    if has_launcher or not wants_tasks:
        if label:
            click.echo(f"note: --label has no effect with --launch {found['launch']}", err=True)
        return AsTasks(list(words), found, None, found["nodes"] or 0)
    found["name"] = found["name"] or os.path.basename(words[0])
    found["env"] = (*slurms_variables(found, has_steps=True), *found["env"])
    return AsTasks(["srun", *(["--label"] if label else ()), "--", *words], found, False, 0)
