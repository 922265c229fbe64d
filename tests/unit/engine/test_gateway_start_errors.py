"""`rlsched engine slurm` with errors at its start: one line, exit code 2, and no job is held."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.engine.fallback import ALIVE_FILE
from tests.support.online.scripted_slurm import ScriptedSlurm

READS = {"scontrol show config", "sinfo -h -o %R", "squeue --json", "sinfo --json"}
RIGHTS = "sacctmgr -nP show user daemon format=AdminLevel"
PLUGIN = "-- job_submit.lua of rlsched"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    """Slurm's commands in a PATH of only them, and rlsched's plugin next to slurm.conf."""
    commands = ScriptedSlurm(tmp_path / "bin")
    commands.configure(JobSubmitPlugins="lua")
    (tmp_path / "job_submit.lua").write_text(PLUGIN)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return commands


def refused(place: Path, commands: ScriptedSlurm, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The error at its start, after which nothing was written."""
    words = ["engine", "slurm", "--partition", "gpu", "--dir", str(place / "gateway")]
    assert run([*words, "--keys", str(place / "keys"), *options]) == 2
    assert set(commands.calls()) <= {*READS, RIGHTS}
    assert not (place / "gateway" / ALIVE_FILE).exists(), "the plugin would hold jobs"
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err


def test_slurm_is_absent(
    tmp_path: Path,
    commands: ScriptedSlurm,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no Slurm here: squeue, sinfo, scontrol, scancel not found" in refused(tmp_path, commands, capsys)


def test_controller_is_down(
    tmp_path: Path, commands: ScriptedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.write("scontrol", "echo 'Unable to contact controller' >&2; exit 1")
    assert "Unable to contact controller; is slurmctld up" in refused(tmp_path, commands, capsys)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"SLURM_VERSION": "19.05.1"}, "Slurm 19.05.1: expected 21.08 to 25.11"),
        ({"JobSubmitPlugins": "(null)"}, "JobSubmitPlugins of this Slurm cluster is (null): expected lua"),
        (
            {"JobSubmitPlugins": "throttle"},
            "JobSubmitPlugins of this Slurm cluster is throttle: expected lua",
        ),
    ],
)
def test_configuration_is_not_suitable(
    tmp_path: Path,
    commands: ScriptedSlurm,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    error: str,
) -> None:
    commands.configure(**{"JobSubmitPlugins": "lua", **changes})
    assert error in refused(tmp_path, commands, capsys)


def test_partition_does_not_exist(
    tmp_path: Path, commands: ScriptedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(tmp_path, commands, capsys, "--partition", "gpus")
    assert "partition 'gpus': expected cpu, gpu (this Slurm's partitions)" in error


def test_plugin_is_missing(
    tmp_path: Path, commands: ScriptedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "job_submit.lua"
    plugin.write_text("-- of the site")
    assert f"{plugin}: this is not rlsched's plugin" in refused(tmp_path, commands, capsys)
    plugin.unlink()
    assert f"{plugin}: no such file, so that Slurm holds no job" in refused(tmp_path, commands, capsys)


@pytest.mark.parametrize(
    ("script", "level"), [("exit 1", "None"), ("echo None", "none")], ids=["no-accounting", "no-operator"]
)
def test_user_has_no_rights(
    tmp_path: Path,
    commands: ScriptedSlurm,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    level: str,
) -> None:
    commands.write("sacctmgr", script)
    monkeypatch.setattr(os, "getuid", lambda: 1)
    error = refused(tmp_path, commands, capsys)
    assert (
        "user daemon may not release and place jobs of others: its admin level in Slurm is " + level in error
    )
