"""The verbs about jobs that are there: cancel, hold, release, requeue, update."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rlsched.cli.job_number import JobName, TasksParam
from rlsched.cli.job_options import changes_asked
from rlsched.cli.options import PRIORITIES, asking, reach
from rlsched.cli.selecting import BY, of_whom, selected, selecting_by, states_of, waits
from rlsched.errors import InputError, nearest

if TYPE_CHECKING:
    from rlsched.client.client import Client

Order = Callable[["Client", JobName], None]
"""Carries something out for one job, for an array, or for some of its tasks."""
_WAITING: Final = ("queued",)
_LIVE: Final = ("queued", "launching", "running")
_SCONTROL: Final = {
    "jobname": "--name",
    "name": "--name",
    "timelimit": "--time",
    "starttime": "--begin",
    "dependency": "--dependency",
    "priority": "--priority",
    "arraytaskthrottle": "--array-limit",
    "features": "--gpu-type",
}
"""Words of `scontrol update`, by what they are here."""
_LIST: Final = re.compile(r"\d[\d_]*(?:,\d[\d_]*)+")


class OrderCommand(click.Command):
    """A verb about jobs, which are also named as Slurm does: `7,8`, `JobId=7`."""

    words: Mapping[str, str] = {}
    """Words of `scontrol update` that mean an option here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with Slurm's words in ours."""
        found: list[str] = []
        for one in args:
            name, equals, value = one.partition("=")
            if _LIST.fullmatch(one):
                found += one.split(",")
            elif not equals or not name.isalpha():
                found.append(one)
            elif name.lower() in ("jobid", "job"):
                found += [value] if "[" in value else value.split(",")
            elif name.lower() in self.words:
                found += [self.words[name.lower()], value]
            elif self.words:
                raise click.UsageError(
                    f"{name}: that of a job cannot change; {nearest(name.lower(), self.words)}"
                    "expected some of JobName, TimeLimit, StartTime, Dependency, Priority, "
                    "ArrayTaskThrottle, Features",
                    ctx,
                )
            else:
                found.append(one)
        return super().parse_args(ctx, found)


class UpdateCommand(OrderCommand):
    """... and changed as with `scontrol update`: `JobId=7 TimeLimit=2:00:00`."""

    words = _SCONTROL


def order_verb(
    done: str,
    states: Sequence[str],
    *,
    by: Sequence[str] = BY,
    cls: type[OrderCommand] = OrderCommand,
    waits_alone: bool = False,
) -> Callable[[Callable[..., Order]], click.Command]:
    """A verb that tells many jobs the same: those of these numbers, or by user, state, name, VC, or all.

    Args:
        done: What is said of a job afterwards.
        states: Which jobs can be meant where no numbers are given.
        by: What they are chosen by then.
        cls: What the verb is made of.
        waits_alone: Of an array it can be carried out for the tasks alone that wait.
    """

    def verb(make: Callable[..., Order]) -> click.Command:
        def carry_out(
            *,
            jobs: tuple[JobName, ...],
            everything: bool,
            broker: str | None,
            keys: Path | None,
            timeout_s: float,
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
                raise InputError(f"expected numbers of jobs, or which ones by {options} or --all{got}")
            order = make(**asked)
            with reach(broker, keys, timeout_s) as client:
                if is_by_kind:
                    jobs = _chosen(client, wanted, states, waits_alone=waits_alone)
                return _each(client, jobs, order, done)

        command: Any = update_wrapper(carry_out, make)
        command = click.option("--all", "everything", is_flag=True, help="All jobs.")(command)
        command = selecting_by(by)(asking(command))
        command = click.argument("jobs", nargs=-1, type=TasksParam(), metavar="[JOB]...")(command)
        return click.command(cls=cls)(command)

    return verb


def _those_that_wait(jobs: Sequence[JobName], state: str) -> tuple[JobName, ...]:
    """Of these jobs, what waits.

    Raises:
        InputError: another state was named.
    """
    if states_of(state) != {"queued"}:
        raise InputError(
            f"--state {state!r}: expected queued with numbers of jobs, which takes what waits of them"
        )
    return tuple(job._replace(waiting=True) for job in jobs)


def _chosen(
    client: Client, wanted: dict[str, Any], states: Sequence[str], *, waits_alone: bool
) -> tuple[JobName, ...]:
    """The jobs that are meant; of an array that is meant as a whole, not its tasks one by one.

    Where jobs that run are meant and none that wait, an array is not: its tasks that run are.
    """
    asked = states_of(wanted["state"])
    found = [
        one
        for one in selected(client.jobs(), of_whom(client, wanted), arrays_wait=True)
        if one.state in states or ("queued" in states and waits(one))
        if not one.num_tasks or asked is None or "queued" in asked
    ]
    arrays = {one.job for one in found if one.num_tasks}
    waiting = waits_alone and asked == {"queued"}
    jobs = tuple(JobName(one.job, waiting=waiting) for one in found if one.array not in arrays)
    if not jobs:
        click.echo("no such jobs wait or run", err=True)
    return jobs


def _each(client: Client, jobs: Sequence[JobName], order: Order, done: str) -> int:
    """Carry an order out for each job; the exit code of the last that could not be."""
    from rlsched.terminal import visible

    code = 0
    for job in jobs:
        try:
            order(client, job)
            click.echo(f"job {job}: {done}")
        except InputError as error:
            click.echo(visible(f"error: {error}"), err=True)
            code = error.exit_code
    return code


@order_verb("cancelled", _LIVE, waits_alone=True)
def cancel() -> Order:
    """Cancel jobs: take them out of the queue, or end their processes.

    With --state queued, tasks of arrays that run go on.

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
    """Keep waiting jobs out of the queue until they are released.

    \b
    Example:
      rlsched hold 7
      rlsched hold 9_[20-40]
      rlsched hold --user ada
    """
    return lambda client, job: client.hold(job.number, tasks=job.ranges())


@order_verb("released", _WAITING)
def release() -> Order:
    """Let held jobs into the queue.

    \b
    Example:
      rlsched release 7
    """
    return lambda client, job: client.release(job.number, tasks=job.ranges())


@order_verb("requeued", _LIVE[1:])
def requeue() -> Order:
    """End running jobs' processes, and queue the jobs again.

    \b
    Example:
      rlsched requeue 7
    """
    return lambda client, job: client.requeue(job.number, tasks=job.ranges())


@order_verb("updated", _LIVE, by=("user", "state", "me", "vc"), cls=UpdateCommand)
@click.option("-J", "--name", "--job-name", metavar="NAME", help="Call it so.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Jobs of a higher one go first.")
@click.option("--time", metavar="TIME", help="End it after so long: minutes, 1:30:00, 90m; UNLIMITED.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The same, in seconds.",
)
@click.option("-b", "--begin", metavar="TIME", help="Not before: now+1h, 16:00, 2026-11-01T13:30; now.")
@click.option(
    "-d", "--dependency", metavar="WHAT", help='Wait for these jobs, and for no others; "": for none.'
)
@click.option("--gpu-type", metavar="TYPE,...", help="GPUs of these types alone; any.")
@click.option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL: 60s, 5m.")
@click.option("--lost-after", metavar="TIME", help="As of `rlsched submit`.")
@click.option("--share", type=click.Choice(["auto", "yes", "no"]), help="Likewise; its co-tenants stay.")
@click.option(
    "--array-limit", type=click.IntRange(min=0), metavar="N", help="So many tasks at once; 0: any number."
)
def update(**asked: Any) -> Order:
    """Change what was submitted: of waiting jobs all of this, of running ones name, priority, time limit.

    Users may lower the time limit of a job that runs, and admins may raise it. Of an array it changes for all
    that is still to come. What cannot change is said, and nothing is done.

    \b
    Example:
      rlsched update 7 --time 2h --begin now+1h
      rlsched update 9_[20-40] --priority low
      rlsched update --user ada --dependency ''
      rlsched update JobId=7 TimeLimit=2:00:00
    """
    changes = changes_asked(asked, clock.time())
    return lambda client, job: client.update(job.number, tasks=job.ranges(), **changes)
