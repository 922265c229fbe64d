"""Runs Slurm's commands. If a command fails, the error gives the reason in one line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rlsched.errors import InputError

DEADLINE_S: Final = 60.0
SACCT_DEADLINE_S: Final = 1800.0
"""Time-out of sacct, seconds. A query for a year of jobs takes minutes."""
SACCT_FIELDS: Final = (
    *("JobID", "JobName", "User", "Account", "Partition", "QOS", "State", "Submit", "Start", "End"),
    *("ElapsedRaw", "TimelimitRaw", "NNodes", "NodeList", "ReqTRES", "AllocTRES"),
)
EVENT_FIELDS: Final = ("NodeName", "TimeStart", "TimeEnd", "State")
_FORM: Final = "%Y-%m-%dT%H:%M:%S"


def ask(command: Sequence[str], instead: str) -> str:
    """Run a Slurm command and return its output.

    Args:
        command: The command and its arguments.
        instead: Advice for the error message if the command cannot be run.

    Raises:
        InputError: the command is missing, fails, or does not answer in time.
    """
    with answer(command, instead) as path:
        return path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def answer(command: Sequence[str], instead: str) -> Iterator[Path]:
    """Run a Slurm command and yield its output as a file, because the output can be large.

    Times in the output are Unix seconds.

    Raises:
        InputError: the command is missing, fails, or does not answer in time.
    """
    name = command[0]
    with TemporaryDirectory(prefix="rlsched-") as folder:
        path = Path(folder) / name
        limit_s = SACCT_DEADLINE_S if name == "sacct" else DEADLINE_S
        try:
            with path.open("wb") as out:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"},
                    timeout=limit_s,
                    check=False,
                )
        except FileNotFoundError as error:
            raise InputError(f"{name}: no such command on this machine; {instead}") from error
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{name}: no answer within {limit_s:.0f} s; {instead}") from error
        except OSError as error:
            raise InputError(f"{name}: cannot be run: {error.strerror}; {instead}") from error
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if done.returncode:
            why = said[-1] if said else f"exit code {done.returncode}"
            raise InputError(f"{name} failed: {why.strip()}; {instead}")
        yield path


def sacct(since_s: float, until_s: float | None) -> list[str]:
    """Return the command that lists all jobs from `since_s` to `until_s` (None: to now), Unix seconds."""
    return [
        *("sacct", "--allusers", "--duplicates", "--parsable2"),
        *("--starttime", _time(since_s), "--endtime", "now" if until_s is None else _time(until_s)),
        *("--format", ",".join(SACCT_FIELDS)),
    ]


def sacctmgr_events(since_s: float) -> list[str]:
    """Return the command that lists the periods in which nodes were down or drained, since a Unix time."""
    return [
        *("sacctmgr", "--parsable2", "show", "event", f"start={_time(since_s)}"),
        f"format={','.join(EVENT_FIELDS)}",
    ]


def _time(unix_s: float) -> str:
    """Format a time in this machine's time zone, as sacct and sacctmgr expect."""
    from datetime import datetime

    return datetime.fromtimestamp(unix_s).strftime(_FORM)
