"""Filename patterns of `--output` and `--error`. They have the same meaning as in `sbatch`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rlsched.broker.base.entries import JobSubmitted

_PATTERN: Final = re.compile(r"%(\d{0,2})(.?)", re.DOTALL)
_LETTERS: Final = "AajNntux%"
_OF_RANK: Final = frozenset("Nnt")
_MOST_DIGITS: Final = 10


def wrong_pattern(field: str, pattern: str) -> str:
    """Return an error message, in one line, if a pattern is invalid, else ""."""
    for found in _PATTERN.finditer(pattern):
        if not found[2] or found[2] not in _LETTERS:
            return f"{field}: expected %% or % with one of A a j N n t u x, got {found[0]!r} in {pattern!r}"
    if pattern.endswith("/"):
        return f"{field}: expected a file, got a directory: {pattern!r}"
    return ""


def names_rank(pattern: str) -> bool:
    """Return whether the pattern gives each rank its own file: it contains `%N`, `%n` or `%t`."""
    return any(found[2] in _OF_RANK for found in _PATTERN.finditer(pattern))


def values(
    *, job: int, array: int, task: int, name: str, user: str, node: str, rank: int
) -> Mapping[str, str]:
    """Return the texts that replace the `%` codes of a pattern, by the letter of the code.

    Args:
        job: Job number.
        array: Job number of the array; 0: the job is not in an array, and `%A` is its own job number.
        task: Task number; 0 without an array.
        name: Name of the job. Slashes are replaced by `_`.
        user: Owner of the job. Slashes are replaced by `_`.
        node: Name of the rank's node. Only the part before the first dot is used.
        rank: Index of the rank.
    """
    return {
        "j": str(job),
        "A": str(array or job),
        "a": str(task),
        "x": name.replace("/", "_"),
        "u": user.replace("/", "_"),
        "N": node.partition(".")[0],
        "n": str(rank),
        "t": str(rank),
        "%": "%",
    }


def expanded(pattern: str, texts: Mapping[str, str]) -> str:
    """Return a pattern with each `%` code (`%` and a letter) replaced by the text of the letter.

    An integer between `%` and the letter is the minimum width of a number, which is padded with zeros.

    Args:
        pattern: The pattern.
        texts: Result of `values`.
    """

    def text(found: re.Match[str]) -> str:
        plain = texts[found[2]]
        width = min(int(found[1] or 0), _MOST_DIGITS)
        return plain.zfill(width) if plain.isdecimal() else plain

    return _PATTERN.sub(text, pattern)


class OutputFiles(NamedTuple):
    """The output files of one rank; fields as in `Launch`."""

    output: str = ""
    error: str = ""
    appends: bool = False
    whole_lines: bool = False


NO_FILES: Final = OutputFiles()


def files_of(spec: JobSubmitted, attempt: int, rank: int, nodes: Sequence[str]) -> OutputFiles:
    """Return the output files of one rank of a job.

    A file to which several ranks write is never truncated: a rank does not know whether another has written.

    Args:
        spec: The submission.
        attempt: Attempt number; 1 for the first attempt.
        rank: Index of the rank.
        nodes: The node of each rank.
    """
    patterns = [one for one in (spec.output, spec.error) if one]
    if not patterns:
        return NO_FILES
    texts = values(
        job=spec.job,
        array=spec.array,
        task=spec.task,
        name=spec.name,
        user=spec.user,
        node=nodes[rank],
        rank=rank,
    )
    is_shared = len(nodes) > 1 and not all(map(names_rank, patterns))
    return OutputFiles(
        expanded(spec.output, texts),
        expanded(spec.error, texts),
        is_shared or spec.open_mode == "append" or (spec.open_mode == "auto" and attempt > 1),
        is_shared,
    )
