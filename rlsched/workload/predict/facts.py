"""What a broker knows of a job when it is submitted, and the keys under which jobs resemble each other."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LEVELS: Final = ("all", "gpus", "vc", "vc_gpus", "user", "identity")
"""From the widest key to the narrowest; a job has those that its facts allow, and always the first and
`vc_gpus`."""

_NUMBER = re.compile(r"\d+")


class JobFacts(NamedTuple):
    """One submission.

    Attributes:
        job_id: Unique id.
        gpus: GPUs of the gang (a share of one, where it is one).
        vc: Its virtual cluster, "" where unknown; so the others.
        user: Who submitted it.
        name: Its name.
        command: Its command line.
        limit_s: The user's limit on the run time, s, nan where there is none.
    """

    job_id: str
    gpus: float
    vc: str = ""
    user: str = ""
    name: str = ""
    command: str = ""
    limit_s: float = float("nan")


Key = tuple[str, ...]


def stem(text: str) -> str:
    """Numbers become `#`, so that `train_12` and `train_13` are one thing that is run again."""
    return _NUMBER.sub("#", text)


def keys_of(job: JobFacts) -> tuple[Key | None, ...]:
    """(LEVELS,) the job's key at every level; None: its facts say no more than a wider level does."""
    gpus = f"{job.gpus:g}"
    owned, named = bool(job.user), bool(job.name or job.command)
    return (
        ("all",),
        ("gpus", gpus) if job.vc else None,
        ("vc", job.vc) if job.vc else None,
        ("vc_gpus", job.vc, gpus),
        ("user", job.vc, job.user, gpus) if owned else None,
        ("identity", job.vc, job.user, stem(job.name), stem(job.command), gpus) if named else None,
    )
