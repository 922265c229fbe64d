"""Slurm's commands as shell scripts that a test writes; every call is logged."""

from __future__ import annotations

from pathlib import Path

from rlsched.engine.reader import PROGRAMS

CONFIG = {
    "SLURM_VERSION": "22.05.8",
    "ClusterName": "c",
    "SlurmUser": "slurm(64030)",
    "PrivateData": "none",
    "MinJobAge": "300 sec",
}


class ScriptedSlurm:
    """A Slurm with partitions `gpu` and `cpu`, without jobs and nodes.

    Args:
        folder: Folder of the commands; must be the only one in PATH.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "calls"
        folder.mkdir()
        for name in PROGRAMS:
            self.write(name, "exit 0")
        self.configure()
        self.write("sinfo", 'case "$1" in -h) echo gpu; echo cpu;; *) echo \'{"nodes": []}\';; esac')
        self.write("squeue", "echo '{\"jobs\": []}'")

    def write(self, name: str, script: str) -> None:
        """Replace a command."""
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._log}\n{script}\n')
        path.chmod(0o755)

    def configure(self, **changes: str) -> None:
        """Change lines of `scontrol show config`."""
        lines = "".join(f"{name} = {value}\n" for name, value in (CONFIG | changes).items())
        self.write("scontrol", f"echo '{lines}'")

    def calls(self) -> list[str]:
        """Every call so far, with its arguments."""
        return self._log.read_text().splitlines() if self._log.exists() else []
