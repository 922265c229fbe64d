"""Options that select jobs: by user, state, name and virtual cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rlsched.cli.shared.options import Command
from rlsched.cli.shared.slurms_options import STATES as STATES_INSTEAD
from rlsched.errors import InputError
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, FINISHED, LAUNCHING, LIVE, QUEUED, RUNNING

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo, NodeInfo, PastJob

    Listed = TypeVar("Listed", JobInfo, PastJob)

STATES: Final = (*LIVE, *FINISHED)
_SLURMS: Final = {
    "pending": QUEUED,
    "pd": QUEUED,
    "configuring": LAUNCHING,
    "cf": LAUNCHING,
    "r": RUNNING,
    "cd": COMPLETED,
    "f": FAILED,
    "ca": CANCELLED,
}


def _named(*short: str) -> Callable[[Command], Command]:
    return click.option(
        *short,
        "--name",
        "--jobname",
        metavar="PATTERN",
        help="Only jobs whose name matches this glob pattern.",
    )


def _of_vc(short: str) -> Callable[[Command], Command]:
    return click.option(short, "--vc", "--partition", metavar="VC", help="Only jobs of this virtual cluster.")


NUMBERS: Final = click.option(
    "-j",
    "--jobs",
    "numbers",
    metavar="JOB,...",
    help="Only jobs with these numbers, separated by commas; the number of an array includes all its tasks.",
)
"""The option of `queue` and `history` that selects jobs by their IDs (`of_numbers`)."""
PAST_NAME: Final = _named()
"""The option `--name` of `history`. It has no short name: `-n` omits the heading, as in `sacct`."""
PAST_VC: Final = _of_vc("-r")
"""The option `--vc` of `history`, with the short name `-r` as in `sacct`."""
_OPTIONS: Final = {
    "user": click.option(
        "-u",
        "--user",
        metavar="NAME",
        help="Only jobs of this user, or of several users separated by commas.",
    ),
    "state": click.option(
        "-t",
        "--state",
        "--states",
        metavar="STATE",
        help=f"Only jobs in these states, separated by commas: {', '.join(STATES)}.",
    ),
    "me": click.option("--me", is_flag=True, help="Only your own jobs."),
    "name": _named("-n"),
    "vc": _of_vc("-p"),
}
BY: Final = tuple(_OPTIONS)
"""Names of the options that select jobs."""


def selecting(command: Command) -> Command:
    """Add the options `--user`, `--state`, `--me`, `--name` and `--vc`; `of_whom` and `selected` use them."""
    return selecting_by(BY)(command)


def selecting_by(names: Sequence[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options with these names to a command."""

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def waits(job: JobInfo) -> bool:
    """Return whether a job waits, or an array has tasks that have not started yet."""
    return job.state == QUEUED or (bool(job.tasks) and job.end_s is None)


def selected(jobs: Iterable[JobInfo], wanted: dict[str, Any], *, arrays_wait: bool = False) -> list[JobInfo]:
    """Return the jobs that the options select.

    Args:
        jobs: Jobs to select from.
        wanted: Option -> its value.
        arrays_wait: Whether an array counts as queued if some of its tasks have not started yet.

    Raises:
        InputError: there is no such state.
    """
    states = states_of(wanted["state"])
    users = wanted["user"].split(",") if wanted["user"] else None
    pattern, vc = wanted.get("name"), wanted["vc"]
    return [
        job
        for job in jobs
        if states is None or job.state in states or (arrays_wait and QUEUED in states and waits(job))
        if users is None or job.user in users
        if pattern is None or fnmatchcase(job.name, pattern)
        if vc is None or job.vc == vc
    ]


def of_whom(client: Client, wanted: dict[str, Any]) -> dict[str, Any]:
    """Replace `--me` in the option values by `--user NAME`, where NAME is the user of the client's key.

    Raises:
        InputError: `--user` and `--me` are given.
    """
    if not wanted.get("me"):
        return wanted
    if wanted["user"] is not None:
        raise InputError("expected --user or --me, got both")
    return {**wanted, "user": client.me()}


def of_numbers(jobs: list[Listed], text: str | None) -> list[Listed]:
    """Return the jobs whose IDs are in `text`, such as `7,9,12_3`; all jobs if `text` is None.

    Raises:
        InputError: a word is not a job number.
    """
    if text is None:
        return jobs
    wanted = _ids(text)
    return [
        job
        for job in jobs
        if str(job.job) in wanted or (job.array and {str(job.array), f"{job.array}_{job.task}"} & set(wanted))
    ]


def _ids(text: str) -> list[str]:
    wanted = text.split(",")
    odd = [one for one in wanted if not one.replace("_", "", 1).isdecimal()]
    if odd:
        raise InputError(f"--jobs {odd[0]!r}: expected job numbers, separated by commas")
    return wanted


def first_submission_s(client: Client, text: str) -> float:
    """Return the time of the earliest submission of the jobs whose IDs are in `text`, Unix seconds.

    The result is infinite if there are no such jobs.

    Raises:
        InputError: a word is not a job number.
    """
    first_s = math.inf
    for number in sorted({int(one.partition("_")[0]) for one in _ids(text)}):
        with suppress(InputError):  # there is no such job
            first_s = min(first_s, client.job(number).submit_s)
    return first_s


def jobs_on(nodes: Iterable[NodeInfo], names: str) -> set[int]:
    """Return the numbers of the jobs on nodes whose names match one of the glob patterns, such as `n0,gpu*`.

    Raises:
        InputError: no node matches a pattern.
    """
    found = {node.name: node.jobs for node in nodes}
    chosen: set[str] = set()
    for pattern in names.split(","):
        matching = {name for name in found if fnmatchcase(name, pattern)}
        if not matching:
            raise InputError(f"--nodelist {pattern!r}: no such node; `rlsched nodes` lists them")
        chosen |= matching
    return {job for name in chosen for job in found[name]}


def names_finished(text: str | None) -> bool:
    """Return whether the text of `--state` selects finished jobs: it is `all`, or has a finished state."""
    return text is not None and not (states_of(text) or set(FINISHED)).isdisjoint(FINISHED)


def states_of(text: str | None, known: Sequence[str] = STATES) -> set[str] | None:
    """Return the states in the text of an option, which can contain Slurm's names; None: all states.

    Raises:
        InputError: there is no such state.
    """
    if text is None or text.lower() == "all":
        return None
    found = set()
    for word in text.lower().split(","):
        state = _SLURMS.get(word, word)
        if word in STATES_INSTEAD and state not in known:
            raise InputError(f"--state {word!r}: {STATES_INSTEAD[word]}")
        if state not in known:
            raise InputError(f"--state {word!r}: expected some of {', '.join(known)}, separated by commas")
        found.add(state)
    return found
