"""The verbs for users: submit, queue, why, logs, cancel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.options import asking
from rlsched.cli.show import print_json

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import OnLost, Priority


def _client(broker: str | None, keys: Path | None, timeout_s: float) -> Client:
    from rlsched.client.client import Client

    return Client(broker, home=keys, timeout_s=timeout_s)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--gpus", default=1, show_default=True, type=click.IntRange(min=1), help="GPUs of the gang.")
@click.option("--name", default="", help="For people  [default: the program's name]")
@click.option("--vc", default="", help="Virtual cluster.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the job after so long.",
)
@click.option("--env", "variables", multiple=True, metavar="K=V", help="Environment variable; repeat it.")
@click.option("--cwd", default=None, metavar="DIR", help="Directory to run in  [default: this one]")
@click.option(
    "--preemptible",
    is_flag=True,
    help="It may be stopped for another job's sake (SIGTERM, then SIGKILL), and is started again later, "
    "unless it left exit code 0: then it is done.",
)
@click.option(
    "--speed-energy",
    type=click.FloatRange(min=0, max=1),
    metavar="W",
    help="What energy counts against time here: 0 speed alone, 1 energy alone  [default: the broker's]",
)
@click.option(
    "--workload",
    default="",
    metavar="NAME",
    help="What it computes, as `rlsched models` lists it: its clock is chosen by that  [default: unknown]",
)
@click.option(
    "--on-lost",
    type=click.Choice(["requeue", "wait"]),
    default="requeue",
    show_default=True,
    help="When its node, or the broker, is away for longer than the broker's --lost-after: end it there and "
    "queue it again, or let it go on and wait for the node.",
)
@click.option(
    "--priority",
    type=click.Choice(["low", "normal", "high", "urgent"]),
    default="normal",
    show_default=True,
    help="Jobs of a higher one go first; who may ask for which, the broker says.",
)
@click.option("--user", default="", metavar="NAME", help="In whose name, for admins  [default: your key's]")
@click.option("--wait", "wait_for_it", is_flag=True, help="Wait, and exit with the job's own exit code.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@asking
def submit(
    gpus: int,
    name: str,
    vc: str,
    time_limit: float | None,
    variables: tuple[str, ...],
    cwd: str | None,
    preemptible: bool,
    speed_energy: float | None,
    workload: str,
    on_lost: OnLost,
    priority: Priority,
    user: str,
    wait_for_it: bool,
    command: tuple[str, ...],
    broker: str | None,
    keys: Path | None,
    timeout_s: float,
) -> int:
    """Submit a job. The job's number is printed once it is on disk.

    \b
    Example:
      rlsched submit --gpus 2 --name resnet -- python train.py --epochs 3
      rlsched submit --wait -- sh -c 'echo on $CUDA_VISIBLE_DEVICES'
    """
    import os

    from rlsched.errors import InputError

    wrong = [pair for pair in variables if not pair.partition("=")[1] or pair.startswith("=")]
    if wrong:
        raise InputError(f"--env {wrong[0]!r}: expected NAME=VALUE")
    env = {key: value for key, _, value in (pair.partition("=") for pair in variables)}
    with _client(broker, keys, timeout_s) as client:
        job = client.submit(
            command,
            num_gpus=gpus,
            name=name,
            vc=vc,
            user=user,
            time_limit_s=time_limit,
            env=env,
            cwd=os.path.abspath(cwd or "."),
            preemptible=preemptible,
            speed_energy=speed_energy,
            workload=workload,
            on_lost=on_lost,
            priority=priority,
        )
        click.echo(f"job {job}" if not wait_for_it else f"job {job}, waiting for its end", err=wait_for_it)
        return _wait(client, job) if wait_for_it else 0


def _wait(client: Client, job: int) -> int:
    """The job's exit code; 1 where it has none (cancelled, say)."""
    from rlsched.terminal import visible

    try:
        info = client.wait(job)
    except KeyboardInterrupt:
        click.echo(
            f"job {job} goes on; `rlsched cancel {job}` ends it, `rlsched logs -f {job}` follows it", err=True
        )
        return 130
    if info.state != "completed":
        click.echo(visible(f"job {job} {info.state}: {info.reason}"), err=True)
    return 1 if info.exit_code is None else info.exit_code


@click.command()
@click.option("--all", "finished", is_flag=True, help="Also jobs that are over.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="The latest N jobs alone.  [default: all; with --all 2000]",
)
@click.option("--before", type=click.IntRange(min=1), metavar="JOB", help="Only jobs older than this one.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
@asking
def queue(
    finished: bool,
    limit: int | None,
    before: int | None,
    as_json: bool,
    broker: str | None,
    keys: Path | None,
    timeout_s: float,
) -> None:
    """List waiting and running jobs.

    \b
    Example:
      rlsched queue
      rlsched queue --all --json
      rlsched queue --all --limit 50 --before 1200
    """
    with _client(broker, keys, timeout_s) as client:
        found = client.list_jobs(finished=finished, limit=limit, before=before)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found.jobs))
    else:
        from rlsched.cli.job_tables import print_jobs

        print_jobs(found.jobs)
    if found.jobs and found.omitted:
        more = f"{found.omitted:,} older jobs were left out; --before {found.jobs[0].job} lists them"
        click.echo(more, err=True)


@click.command()
@click.argument("job", type=int)
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output, with the decision's record.")
@asking
def why(job: int, as_json: bool, broker: str | None, keys: Path | None, timeout_s: float) -> None:
    """Say why a job waits, or why it runs where it does.

    \b
    Example:
      rlsched why 7
    """
    with _client(broker, keys, timeout_s) as client:
        explanation = client.why(job)
    if as_json:
        from rlsched.cli.job_tables import explanation_as_data

        print_json(explanation_as_data(explanation))
        return
    from rlsched.terminal import visible

    for line in str(explanation).split("\n"):
        click.echo(visible(line))


@click.command()
@click.argument("job", type=int)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(min=0), help="Rank of the gang.")
@asking
def logs(job: int, follow: bool, rank: int, broker: str | None, keys: Path | None, timeout_s: float) -> None:
    """Show the output of a job.

    \b
    Example:
      rlsched logs 7
      rlsched logs -f --rank 1 7
    """
    with _client(broker, keys, timeout_s) as client:
        silent = True
        for piece in client.log(job, rank=rank, follow=follow):
            silent = False
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if silent:
            click.echo(f"job {job} has no output: it is {client.job(job).state}", err=True)


@click.command()
@click.argument("jobs", nargs=-1, required=True, type=int, metavar="JOB...")
@asking
def cancel(jobs: tuple[int, ...], broker: str | None, keys: Path | None, timeout_s: float) -> int:
    """Cancel jobs: take them out of the queue, or end their processes.

    \b
    Example:
      rlsched cancel 7 8
    """
    from rlsched.errors import InputError
    from rlsched.terminal import visible

    code = 0
    with _client(broker, keys, timeout_s) as client:
        for job in jobs:
            try:
                client.cancel(job)
                click.echo(f"job {job}: cancelled")
            except InputError as error:
                click.echo(visible(f"error: {error}"), err=True)
                code = error.exit_code
    return code
