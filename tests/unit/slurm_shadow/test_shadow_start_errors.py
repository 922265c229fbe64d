"""`rlsched engine slurm --shadow` with errors at its start: one line, exit code 2, no file is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlsched.cli.operators.engine import slurm
from rlsched.errors import InputError
from tests.support.online.scripted_slurm import ScriptedSlurm


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    """Slurm's commands in a PATH of only them; each can be rewritten."""
    commands = ScriptedSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return commands


def refused(directory: Path, *options: str) -> str:
    """The error at its start."""
    words = ["--shadow", "--partition", "gpu", "--dir", str(directory / "shadow"), *options]
    with pytest.raises(InputError) as caught:
        slurm.main(words, standalone_mode=False)
    assert not (directory / "shadow").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no Slurm here: squeue, sinfo, scontrol, scancel not found in PATH" in refused(tmp_path)


@pytest.mark.parametrize(
    ("command", "script", "error"),
    [
        (
            "scontrol",
            "echo 'slurm_load_ctl_conf error: Unable to contact controller' >&2; exit 1",
            "Unable to contact controller; is slurmctld up",
        ),
        ("squeue", "echo not JSON", "`squeue --json`: cannot parse the output"),
    ],
    ids=["unreachable-controller", "invalid-json"],
)
def test_failed_command(
    tmp_path: Path, commands: ScriptedSlurm, command: str, script: str, error: str
) -> None:
    commands.write(command, script)
    assert error in refused(tmp_path)


def test_unknown_version(tmp_path: Path, commands: ScriptedSlurm) -> None:
    commands.configure(SLURM_VERSION="19.05.1")
    assert refused(tmp_path) == "Slurm 19.05.1: expected 21.08 to 25.11, whose JSON rlsched can read"


@pytest.mark.usefixtures("commands")
def test_unknown_partition(tmp_path: Path) -> None:
    assert (
        refused(tmp_path, "--partition", "gpus")
        == "partition 'gpus': expected cpu, gpu (this Slurm's partitions)"
    )


def test_no_rights_to_see_the_jobs_of_others(
    tmp_path: Path, commands: ScriptedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1)
    commands.configure(PrivateData="accounts,jobs,usage")
    assert refused(tmp_path).startswith("user daemon sees no jobs of others (PrivateData of this Slurm)")


@pytest.mark.usefixtures("commands")
def test_polls_that_are_too_rare(tmp_path: Path) -> None:
    assert "forgets jobs 300 s after their end (MinJobAge)" in refused(tmp_path, "--poll-s", "200")


@pytest.mark.usefixtures("commands")
def test_conflicting_options(tmp_path: Path) -> None:
    assert "--shadow: give only one of them" in refused(tmp_path, "--remove")


@pytest.mark.usefixtures("commands")
def test_no_nodes_with_gpus(tmp_path: Path) -> None:
    assert "partition gpu: no node with a GPU" in refused(tmp_path)


@pytest.mark.parametrize(("policy", "why"), [("nobody", "nobody"), ("pack", "only with --share")])
def test_policy_that_cannot_decide(tmp_path: Path, commands: ScriptedSlurm, policy: str, why: str) -> None:
    node = '{"name": "n1", "gres": "gpu:4", "partitions": ["gpu"], "state": "idle"}'
    commands.write("sinfo", f'case "$1" in -h) echo gpu;; *) echo \'{{"nodes": [{node}]}}\';; esac')
    assert why in refused(tmp_path, "--policy", policy)
