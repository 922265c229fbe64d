"""The commands by which a gateway writes to Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.engine.writer import Writer
from tests.support.online.scripted_slurm import ScriptedSlurm


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    """Slurm's commands in a PATH of only them."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return ScriptedSlurm(tmp_path / "bin")


def test_signals_of_one_moment_are_sent_together(commands: ScriptedSlurm) -> None:
    commands.write("scancel", '[ "$3" != --signal=XX ] && [ "$2" != --signal=XX ]')
    writer = Writer()
    with writer.together():
        for key, signal in {"4": "XX", "5": "USR1", "6": "B:USR1", "7_2": "USR1"}.items():
            writer.signal(key, signal, {"k": "9"})
        writer.cancel("8")
    assert commands.calls() == [
        "scontrol -Q",
        "scancel --ctld --signal=XX 4",
        "scancel --ctld --signal=USR1 5 7_2",
        "scancel --ctld --batch --signal=USR1 6",
        "scancel 8",
    ]


def test_signal_is_not_sent_before_it_is_recorded(commands: ScriptedSlurm) -> None:
    commands.write("scontrol", 'while read line; do case "$line" in *JobId=5*) exit 1;; esac; done')
    writer = Writer()
    with writer.together():
        writer.signal("5", "USR1", {"k": "9"})
        writer.signal("6", "USR1", {"k": "9"})
    assert [line for line in commands.calls() if line.startswith("scancel")] == [
        "scancel --ctld --signal=USR1 6"
    ]
