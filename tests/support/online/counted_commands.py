"""Slurm's commands as a process finds them in its PATH, with each call logged before it runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

COMMANDS = (
    *("squeue", "sinfo", "scontrol", "scancel", "sbatch", "srun", "salloc", "sacct", "sacctmgr", "sdiag"),
    *("sprio", "sshare", "sreport", "strigger", "scrontab", "sbcast", "sattach", "sstat"),
)


class CountedCommands:
    """A folder of wrappers around Slurm's commands.

    Args:
        directory: Directory of the wrappers and their log.
        environment: Environment of the process that runs them.

    Attributes:
        environment: The same environment, with the wrappers before everything else in PATH.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        directory.mkdir(parents=True)
        self._log = directory / "calls.log"
        self._log.touch()
        for name in COMMANDS:
            real = shutil.which(name)
            if real is not None:
                path = directory / name
                path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._log}\nexec {real} "$@"\n')
                path.chmod(0o755)
        self.environment = {**environment, "PATH": f"{directory}{os.pathsep}{environment['PATH']}"}

    def calls(self) -> list[str]:
        """Every call so far, with its arguments."""
        return self._log.read_text().splitlines()

    def writes(self) -> list[str]:
        """Calls that are not known to be read-only."""
        return [call for call in self.calls() if not _reads(call)]


def _reads(call: str) -> bool:
    name, _, rest = call.partition(" ")
    return name in ("squeue", "sinfo", "sdiag") or (name == "scontrol" and rest.startswith("show "))
