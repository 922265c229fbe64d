"""Facts that a broker knows about a job at submission, and the keys that similar jobs share."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

LEVELS: Final = ("all", "gpus", "vc", "vc_gpus", "user", "name", "command", "words", "exact")
"""Levels of keys, from the widest to the narrowest. Jobs with the same key at a level are similar.

A job has no key at a level for which its facts have no value. Level `name` ignores all numbers in the job
name, `words` only standalone numbers, and `exact` none.
"""

_NUMBER = re.compile(r"\d+")
_COUNTER = re.compile(r"(?<![^\W_])\d+(?![^\W_])")


class JobFacts(NamedTuple):
    """Facts about one submission.

    Attributes:
        job_id: Unique ID.
        gpus: Number of whole GPUs, or the fraction of one GPU.
        vc: Virtual cluster. All texts are "" if unknown.
        user: User who submitted the job.
        name: Name of the job.
        command: Command line of the job.
        limit_s: The user's limit on the run time, s; nan: no limit.
    """

    job_id: str
    gpus: float
    vc: str = ""
    user: str = ""
    name: str = ""
    command: str = ""
    limit_s: float = float("nan")


Key = tuple[str, ...]


@lru_cache(maxsize=512)
def stem(text: str) -> str:
    """Replace all numbers by `#`: `train_12` and `train_13` become equal."""
    return _NUMBER.sub("#", text)


@lru_cache(maxsize=512)
def words(text: str) -> str:
    """Replace standalone numbers by `#`: `resnet50_12` becomes `resnet50_#`."""
    return _COUNTER.sub("#", text)


def keys_of(job: JobFacts) -> tuple[Key | None, ...]:
    """Return the key of a job at each of `LEVELS`; None: the job has no key at this level.

    The reason is that its facts lack a value, or that the key would select the same jobs as another key.
    """
    return _keys(job.gpus, job.vc, job.user, job.name, job.command)


@lru_cache(maxsize=512)
def _keys(gpus: float, vc: str, user: str, name: str, command: str) -> tuple[Key | None, ...]:
    """Return the keys of a job. The result is cached: jobs of a sweep or an array have the same facts."""
    size = f"{gpus:g}"
    who = (vc, user, size)
    plain, worded, command_words = stem(name), words(name), words(command)
    told = (plain if command_words else worded, command_words)
    return (
        ("all",),
        ("gpus", size) if vc else None,
        ("vc", vc) if vc else None,
        ("vc_gpus", vc, size),
        ("user", *who) if user else None,
        ("name", *who, plain) if plain else None,
        ("command", *who, plain, command_words) if command_words else None,
        ("words", *who, worded) if worded != plain else None,
        ("exact", *who, name, command) if (name, command) != told else None,
    )
