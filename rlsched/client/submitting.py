"""Creates and sends the messages by which one or many jobs are submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Unpack

import msgspec

from rlsched.client.submission_types import JobAsked
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport.connection import what_cannot_be_sent
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    Submit,
    SubmitMany,
    SubmittedMany,
    Tasks,
)

MOST_AT_ONCE: Final = 500
"""Maximum number of jobs per message; a broker refuses messages with more jobs."""
_MOST_BYTES: Final = MAX_MESSAGE_BYTES * 9 // 10
_PLACE: Final = r"job (\d+): "


class JobRefusedError(InputError):
    """The broker rejects one of many jobs. Only the jobs in earlier messages, if any, are queued.

    Attributes:
        place: Index of the rejected job in the submission, from 0.
        why: Reason for the rejection.
        queued: Job numbers of the first jobs of the submission, which are already queued.
    """

    def __init__(self, place: int, why: str, queued: Sequence[int] = ()) -> None:
        super().__init__(f"job {place + 1}: {why}{_but_queued(queued)}")
        self.place, self.why, self.queued = place, why, list(queued)


def _but_queued(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f"; jobs 1 to {len(numbers)} of these are queued: {numbers[0]} to {numbers[-1]}"


def as_submit(command: Sequence[str], **asked: Unpack[JobAsked]) -> Submit:
    """Return the message of a submission; arguments as for `Client.submit`.

    Raises:
        InputError: the tasks of the array are invalid.
    """
    said: dict[str, Any] = dict(asked)
    tasks: list[Tasks] = []
    limit = 0
    if array := said.pop("array", ""):
        from rlsched.client.array_text import tasks_of

        tasks, limit = tasks_of(array)
    cwd = said.pop("cwd", None)
    return Submit(
        token=said.pop("token", None) or os.urandom(16).hex(),
        command=list(command),
        num_gpus=said.pop("num_gpus", 1),
        env=said.pop("env", None) or {},
        cwd=os.getcwd() if cwd is None else cwd,
        gpu_types=list(said.pop("gpu_types", ())),
        preferred_types=list(said.pop("preferred_types", ())),
        notify=",".join(dict.fromkeys(said.pop("notify", ()))),
        depends_on=list(said.pop("depends_on", ())),
        tasks=tasks,
        array_limit=limit,
        **said,
    )


def submit_many(
    ask: Callable[[SubmitMany, type[SubmittedMany]], SubmittedMany],
    jobs: Sequence[Submit],
    seen: Callable[[int], object] | None = None,
) -> list[int]:
    """Queue all jobs, and return their job numbers. If a job is rejected, usually no job is queued.

    A single message is queued as a whole or not at all. For several messages, the broker checks all jobs
    before it queues the first. If a job is rejected after its check, for example because of a quota, the jobs
    of earlier messages are queued, and the error names them.

    Args:
        ask: Function that sends a message, and returns the answer of the given type.
        jobs: Submissions of the jobs.
        seen: Function that is called after each message with the number of jobs queued so far.

    Raises:
        JobRefusedError: a job is rejected.
        BrokerUnavailableError: no broker answers.
    """
    env, own = in_common(jobs)
    parts = split(env, own)
    found: list[int] = []
    for check in (True, False) if len(parts) > 1 else (False,):
        first = 0
        for part in parts:
            try:
                reply = ask(SubmitMany(jobs=part, env=env, check=check), SubmittedMany)
            except InputError as error:
                place = re.match(_PLACE, str(error))
                if place is None:
                    raise InputError(f"{error}{_but_queued(found)}") from error
                why = str(error)[place.end() :]
                raise JobRefusedError(first + int(place[1]) - 1, why, found) from error
            except BrokerUnavailableError as error:
                raise BrokerUnavailableError(f"{error}{_but_queued(found)}") from error
            first += len(part)
            found += reply.jobs
            if seen is not None and not check:
                seen(first)
    return found


def in_common(jobs: Sequence[Submit]) -> tuple[dict[str, str], list[Submit]]:
    """Return the environment variables that are equal in all jobs, and the jobs without these variables."""
    env = dict(jobs[0].env) if jobs else {}
    for job in jobs:
        env = {name: value for name, value in env.items() if job.env.get(name) == value}
    return env, [
        msgspec.structs.replace(job, env={name: value for name, value in job.env.items() if name not in env})
        for job in jobs
    ]


def split(env: dict[str, str], jobs: Sequence[Submit]) -> list[list[Submit]]:
    """Split jobs into lists that each fit in one message, together with the common variables `env`.

    Raises:
        JobRefusedError: a job cannot be encoded as a message.
    """
    common = len(msgspec.msgpack.encode(env))
    parts: list[list[Submit]] = []
    size = 0
    for place, job in enumerate(jobs):
        try:
            with what_cannot_be_sent():
                own = len(msgspec.msgpack.encode(job))
        except InputError as error:
            raise JobRefusedError(place, str(error)) from error
        if not parts or len(parts[-1]) == MOST_AT_ONCE or size + own > _MOST_BYTES:
            parts.append([])
            size = common
        parts[-1].append(job)
        size += own
    return parts
