"""Names of the files for the output of a step, from Slurm's patterns in `srun --output` and `--error`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

NOWHERE = os.devnull
OUT, ERR = 1, 2
"""Streams of a task."""


def step_values(environ: Mapping[str, str], step: int) -> dict[str, str]:
    """Return the texts that replace letters in patterns of file names, by letter, such as the job ID for `j`.

    Only letters with the same text for all tasks of a step are included.
    """
    job = environ.get("SLURM_JOB_ID", "")
    return {
        "j": job,
        "J": f"{job}.{step}",
        "s": str(step),
        "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": environ.get("SLURM_ARRAY_TASK_ID", "0"),
        "x": environ.get("SLURM_JOB_NAME", ""),
        "u": environ.get("USER", ""),
    }


def file_of(pattern: str, values: Mapping[str, str]) -> str:
    """Return the path for a pattern such as `out-%j-%2t.txt`. Unknown letters are left unchanged.

    A number between `%` and the letter is a minimum width: a shorter number gets leading zeros.
    """

    def value(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        text = values.get(letter, found[0])
        return text.zfill(min(int(width), 10)) if width and text.isdecimal() else text

    return re.sub(r"%(\d*)([jJsAaxutnN%])", value, pattern)


def is_of_srun(pattern: str | None) -> bool:
    """Return whether `srun` itself writes the file, because all tasks of the step share it."""
    return is_file(pattern) and re.search(r"%\d*[tnN]", str(pattern).replace("%%", "")) is None


def is_file(pattern: str | None) -> bool:
    """Return whether the value of `--output` or `--error` names a file."""
    return pattern is not None and pattern not in ("all", "none") and not pattern.isdecimal()


def of_task(pattern: str | None, number: int, values: Mapping[str, str], cwd: str) -> str:
    """Return the file to which a task writes its output; "": the output goes to `srun`.

    Args:
        pattern: Value of `--output` or `--error`; None: not given.
        number: ID of the task (`SLURM_PROCID`).
        values: Texts that replace letters of the pattern, by letter.
        cwd: Directory to which relative paths refer.
    """
    if pattern is None or pattern == "all" or is_of_srun(pattern):
        return ""
    if pattern == "none" or pattern.isdecimal():
        return "" if pattern == str(number) else NOWHERE
    return os.path.join(cwd, file_of(pattern, values))


def patterns(options: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the patterns for output and errors; without `--error`, errors go to the file of `--output`."""
    out, err = options["output"], options["error"]
    return out, (out if err is None and is_file(out) else err)
