"""The verbs that change existing jobs: cancel, hold, release, requeue, update."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final

import click

from rlsched.cli.shared.job_number import JobName, TasksParam
from rlsched.cli.shared.job_options import change_options, changes_asked
from rlsched.cli.shared.options import BrokerAt, asking
from rlsched.cli.shared.selecting import BY, of_whom, selected, selecting_by, states_of, waits
from rlsched.cli.shared.slurms_options import UPDATES
from rlsched.errors import InputError, nearest
from rlsched.wire.declared import declared
from rlsched.wire.messages import Submit
from rlsched.wire.states import ACTIVE, LIVE, QUEUED

if TYPE_CHECKING:
    from rlsched.client.client import Client

Order = Callable[["Client", JobName], None]
"""Function that sends a command (such as a cancellation) for a job, an array, or tasks of an array."""
_WAITING: Final = (QUEUED,)
_SCONTROL: Final = {
    word: one.setting.options[0].name
    for one in declared(Submit).values()
    for word in one.setting.scontrol.split()
}
"""Word of `scontrol update` -> option of `rlsched update`."""
_LIST: Final = re.compile(r"\d[\d_]*(?:,\d[\d_]*)+")


class OrderCommand(click.Command):
    """A verb that changes jobs. Jobs can also be given as in Slurm: `7,8` or `JobId=7`."""

    words: Mapping[str, str] = {}
    """Word of `scontrol update` that the verb accepts, in upper or lower case -> the verb's option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace Slurm's words by rlsched's options, and parse the result."""
        found: list[str] = []
        options = {word.lower(): option for word, option in self.words.items()}
        for one in args:
            name, equals, value = one.partition("=")
            if _LIST.fullmatch(one):
                found += one.split(",")
            elif not equals or not name.isalpha():
                found.append(one)
            elif name.lower() in ("jobid", "job"):
                found += [value] if "[" in value else value.split(",")
            elif name.lower() in options:
                found += [options[name.lower()], value]
            elif options and name.lower() in UPDATES:
                raise click.UsageError(f"{name}: {UPDATES[name.lower()]}", ctx)
            elif options:
                raise click.UsageError(
                    f"{name}: cannot be changed; {nearest(name.lower(), options)}"
                    f"expected some of {', '.join(self.words)}",
                    ctx,
                )
            else:
                found.append(one)
        return super().parse_args(ctx, found)


class UpdateCommand(OrderCommand):
    """A verb that changes jobs and also accepts words of `scontrol update`: `JobId=7 TimeLimit=2:00:00`."""

    words = _SCONTROL


def order_verb(
    done: str,
    states: Sequence[str],
    *,
    by: Sequence[str] = BY,
    cls: type[OrderCommand] = OrderCommand,
    waits_alone: bool = False,
) -> Callable[[Callable[..., Order]], click.Command]:
    """Return a decorator that makes a verb from a function that returns an `Order`.

    The verb calls the `Order` for jobs given by number, for jobs selected by options, or for all jobs.

    Args:
        done: Word printed for each changed job, such as `cancelled`.
        states: States of the jobs that options can select.
        by: Names of the options that select jobs.
        cls: Class of the command.
        waits_alone: Whether `--state queued` can restrict the verb to the waiting tasks of an array.
    """

    def verb(make: Callable[..., Order]) -> click.Command:
        def carry_out(
            *,
            jobs: tuple[JobName, ...],
            everything: bool,
            at: BrokerAt,
            **asked: Any,
        ) -> int:
            wanted = {name: asked.pop(name) for name in by}
            given = [name for name, value in wanted.items() if value not in (None, False)]
            is_by_kind = everything or bool(given)
            if jobs and waits_alone and given == ["state"] and not everything:
                jobs, is_by_kind = _those_that_wait(jobs, wanted["state"]), False
            if bool(jobs) == is_by_kind:
                options = ", ".join(f"--{name}" for name in by)
                got = ", got both" if jobs else ""
                raise InputError(f"expected job numbers, or a selection by {options} or --all{got}")
            order = make(**asked)
            with at.reach() as client:
                if is_by_kind:
                    jobs = _chosen(client, wanted, states, waits_alone=waits_alone)
                return _each(client, jobs, order, done)

        command: Any = update_wrapper(carry_out, make)
        command = click.option(
            "--all", "everything", is_flag=True, help="Select all jobs to which the command can apply."
        )(command)
        command = selecting_by(by)(asking(command))
        command = click.argument("jobs", nargs=-1, type=TasksParam(), metavar="[JOB]...")(command)
        return click.command(cls=cls)(command)

    return verb


def _those_that_wait(jobs: Sequence[JobName], state: str) -> tuple[JobName, ...]:
    """Return the given IDs, each restricted to a waiting job or to the waiting tasks of an array.

    Raises:
        InputError: `state`, the value of `--state`, is not `queued`.
    """
    if states_of(state) != {QUEUED}:
        raise InputError(
            f"--state {state!r}: expected queued, the only state that can be given together with job numbers"
        )
    return tuple(job._replace(waiting=True) for job in jobs)


def _chosen(
    client: Client, wanted: dict[str, Any], states: Sequence[str], *, waits_alone: bool
) -> tuple[JobName, ...]:
    """Return the IDs of the jobs that the options select. The ID of an array includes all its tasks.

    If the options select running but not waiting jobs, the result has the IDs of an array's running tasks,
    instead of the ID of the array.
    """
    asked = states_of(wanted["state"])
    found = [
        one
        for one in selected(client.jobs(), of_whom(client, wanted), arrays_wait=True)
        if one.state in states or (QUEUED in states and waits(one))
        if not one.num_tasks or asked is None or QUEUED in asked
    ]
    arrays = {one.job for one in found if one.num_tasks}
    waiting = waits_alone and asked == {QUEUED}
    jobs = tuple(JobName(one.job, waiting=waiting) for one in found if one.array not in arrays)
    if not jobs:
        click.echo("no such jobs wait or run", err=True)
    return jobs


def _each(client: Client, jobs: Sequence[JobName], order: Order, done: str) -> int:
    """Call `order` for each job. Return the exit code of the last failure; 0: no failure."""
    from rlsched.terminal.visible import visible

    code = 0
    for job in jobs:
        try:
            order(client, job)
            click.echo(f"job {job}: {done}")
        except InputError as error:
            click.echo(visible(f"error: {error}"), err=True)
            code = error.exit_code
    return code


@order_verb("cancelled", LIVE, waits_alone=True)
def cancel() -> Order:
    """Cancel jobs: remove waiting jobs from the queue, and end the processes of running jobs.

    With --state queued, running tasks of arrays continue.

    \b
    Example:
      rlsched cancel 7 8
      rlsched cancel 9_12 9_[20-40]
      rlsched cancel --user ada --state queued --name 'sweep*'
      rlsched cancel -t PENDING 9
    """
    return lambda client, job: client.cancel(job.number, tasks=job.ranges(), waiting=job.waiting)


@order_verb("held", _WAITING)
def hold() -> Order:
    """Hold waiting jobs until they are released.

    \b
    Example:
      rlsched hold 7
      rlsched hold 9_[20-40]
      rlsched hold --user ada
    """
    return lambda client, job: client.hold(job.number, tasks=job.ranges())


@order_verb("released", _WAITING)
def release() -> Order:
    """Release held jobs.

    \b
    Example:
      rlsched release 7
    """
    return lambda client, job: client.release(job.number, tasks=job.ranges())


@order_verb("requeued", ACTIVE)
def requeue() -> Order:
    """End the processes of running jobs, and requeue the jobs.

    \b
    Example:
      rlsched requeue 7
    """
    return lambda client, job: client.requeue(job.number, tasks=job.ranges())


@order_verb("updated", LIVE, by=("user", "state", "me", "vc"), cls=UpdateCommand)
@change_options
def update(**asked: Any) -> Order:
    """Change submitted jobs.

    For a running job, only --name, --priority, --time, --slack and --share can change. Users can lower the
    time limit of a running job; admins can also raise it. For an array, the change applies to all tasks that
    have not started. If one of several changes is not possible, none is made.

    \b
    Example:
      rlsched update 7 --time 2h --begin now+1h
      rlsched update 9_[20-40] --priority low
      rlsched update --user ada --dependency ''
      rlsched update JobId=7 TimeLimit=2:00:00
    """
    changes = changes_asked(asked, clock.time())
    return lambda client, job: client.update(job.number, tasks=job.ranges(), **changes)
