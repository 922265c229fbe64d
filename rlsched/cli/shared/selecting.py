"""Which jobs a verb is about: by user, state, name and virtual cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import click

from rlsched.cli.shared.options import Command
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo

STATES: Final = ("queued", "launching", "running", "completed", "failed", "cancelled", "rejected")
_SLURMS: Final = {
    "pending": "queued",
    "pd": "queued",
    "configuring": "launching",
    "cf": "launching",
    "r": "running",
    "cd": "completed",
    "f": "failed",
    "ca": "cancelled",
}
_OPTIONS: Final = {
    "user": click.option("-u", "--user", metavar="NAME", help="Of this user alone; several with commas."),
    "state": click.option(
        "-t",
        "--state",
        "--states",
        metavar="STATE",
        help=f"In this state: {', '.join(STATES)}; several with commas.",
    ),
    "me": click.option("--me", is_flag=True, help="One's own."),
    "name": click.option(
        "-n", "--name", "--jobname", metavar="PATTERN", help="Called so; * and ? as in a shell."
    ),
    "vc": click.option("-p", "--vc", "--partition", metavar="VC", help="Of this virtual cluster alone."),
}
BY: Final = tuple(_OPTIONS)
"""What jobs are selected by."""


def selecting(command: Command) -> Command:
    """`user`, `state`, `me`, `name`, `vc`: what `of_whom` and `selected` take."""
    return selecting_by(BY)(command)


def selecting_by(names: Sequence[str]) -> Callable[[Command], Command]:
    """Some of them."""

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def waits(job: JobInfo) -> bool:
    """Whether it waits; of an array, whether tasks are still to come, also while others run."""
    return job.state == "queued" or (bool(job.tasks) and job.end_s is None)


def selected(jobs: Iterable[JobInfo], wanted: dict[str, Any], *, arrays_wait: bool = False) -> list[JobInfo]:
    """Those of these jobs that the options name.

    Args:
        jobs: From which.
        wanted: The options.
        arrays_wait: An array of which tasks are still to come is queued, too, while others run.

    Raises:
        InputError: there is no such state.
    """
    states = states_of(wanted["state"])
    users = wanted["user"].split(",") if wanted["user"] else None
    pattern, vc = wanted.get("name"), wanted["vc"]
    return [
        job
        for job in jobs
        if states is None or job.state in states or (arrays_wait and "queued" in states and waits(job))
        if users is None or job.user in users
        if pattern is None or fnmatchcase(job.name, pattern)
        if vc is None or job.vc == vc
    ]


def of_whom(client: Client, wanted: dict[str, Any]) -> dict[str, Any]:
    """The same with `user` for `--me`: whom this key belongs to.

    Raises:
        InputError: another user was named beside it.
    """
    if not wanted.get("me"):
        return wanted
    if wanted["user"] is not None:
        raise InputError("expected --user or --me, got both")
    return {**wanted, "user": client.me()}


def of_numbers(jobs: list[JobInfo], text: str | None) -> list[JobInfo]:
    """Those of these numbers, `7,9,12_3`; None: all.

    Raises:
        InputError: one of them is no number of a job.
    """
    if text is None:
        return jobs
    wanted = text.split(",")
    odd = [one for one in wanted if not one.replace("_", "", 1).isdecimal()]
    if odd:
        raise InputError(f"--jobs {odd[0]!r}: expected numbers of jobs, with commas between")
    return [
        job
        for job in jobs
        if str(job.job) in wanted or (job.array and {str(job.array), f"{job.array}_{job.task}"} & set(wanted))
    ]


def states_of(text: str | None, known: Sequence[str] = STATES) -> set[str] | None:
    """The states that an option names, in Slurm's words too; None: all of them.

    Raises:
        InputError: there is no such state.
    """
    if text is None or text.lower() == "all":
        return None
    found = set()
    for word in text.lower().split(","):
        state = _SLURMS.get(word, word)
        if state not in known:
            raise InputError(f"--state {word!r}: expected some of {', '.join(known)}, with commas between")
        found.add(state)
    return found
