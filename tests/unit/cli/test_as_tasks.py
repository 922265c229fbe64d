"""`rlsched run` with tasks: which commands become an `srun`."""

from __future__ import annotations

from typing import Any

import click
from click.testing import CliRunner

from rlsched.cli.shared.job_options import submission
from rlsched.cli.users.as_tasks import AsTasks, as_tasks
from rlsched.cli.users.submit import run


def of(*args: str, label: bool = False, has_launcher: bool = False, **more: Any) -> AsTasks:
    """The job of `rlsched run ARGS -- hostname -f`."""
    asked = run.make_context("run", [*args, "hostname", "-f"]).params | more
    for name in ("command", "label", "at"):
        asked.pop(name, None)
    return as_tasks(["hostname", "-f"], asked, label=label, has_launcher=has_launcher)


def test_command_with_tasks_becomes_a_step_on_the_first_node() -> None:
    found = of("-n", "4", "--gpus-per-task=1", "-N2", label=True)
    assert found.command == ["srun", "--label", "--", "hostname", "-f"]
    assert found.labelled is False
    asked = submission(found.asked)
    env = asked["env"]
    assert (asked["name"], asked["num_gpus"]) == ("hostname", 4)
    assert [env[f"SLURM_{name}"] for name in ("NTASKS", "GPUS_PER_TASK", "NNODES")] == ["4", "1", "2"]
    assert len(env["RLSCHED_STEPS_KEY"]) == 64
    assert of("--ntasks-per-node=2", "-N2").command == ["srun", "--", "hostname", "-f"]


def test_command_without_tasks_runs_once_on_each_node() -> None:
    found = of("-N", "2", "--gpus-per-node=1")
    assert (found.command, found.asked["env"]) == (["hostname", "-f"], ())
    assert found.note_on_nodes(2) == ""
    assert "the job has 1 node," in found.note_on_nodes(1)
    assert of().note_on_nodes(3) == ""
    assert of("-n", "4", has_launcher=True).command == ["hostname", "-f"]


def test_script_that_starts_steps_stays_as_it_is() -> None:
    found = of("-n", "4", label=True, env=("RLSCHED_STEPS_KEY=1",))
    assert found.command == ["hostname", "-f"]
    assert found.asked["env"] == ("RLSCHED_STEPS_KEY=1", "SLURM_LABELIO=1")


def test_label_with_a_launcher_is_noted() -> None:
    @click.command()
    def verb() -> None:
        of(label=True, has_launcher=True, launcher="torchrun")

    assert "--label has no effect with --launch" in CliRunner().invoke(verb).output
