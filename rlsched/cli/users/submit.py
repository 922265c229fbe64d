"""The verbs `submit`, which queues a job, and `run`, which also shows the job's output until it ends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from rlsched.cli.shared.job_options import command_of, job_options, submission
from rlsched.cli.shared.options import BrokerAt, asking, json_option
from rlsched.cli.users.as_tasks import AsTasks, as_tasks
from rlsched.cli.users.batch_script import BatchCommand
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo

_ITS_OWN = {"allow_interspersed_args": False}
INTERRUPTED = 130


@click.command(cls=BatchCommand, context_settings=_ITS_OWN)
@job_options
@click.option(
    "--wrap",
    metavar="COMMAND",
    help="Run this shell command line as a script for Slurm (see --launch), instead of COMMAND.",
)
@click.option(
    "-W",
    "--wait",
    "wait_for_it",
    is_flag=True,
    help="Wait until the job has finished, and exit with its exit code.",
)
@click.option("--parsable", is_flag=True, help="Print only the job number.")
@click.option(
    "--dry-run",
    "--test-only",
    is_flag=True,
    help="Do not submit the job; print the predicted start and end of the job, and of similar requests. The "
    "prediction uses the number and type of GPUs, cores, memory, VC, time limit, --preemptible and "
    "--workload.",
)
@click.option(
    "--from",
    "table",
    metavar="FILE",
    help="Submit one job per row of this CSV file (-: standard input). The first line contains names of "
    "options, such as name,gpus,time,command. An empty cell gets the value of the option on the command "
    "line. If a row is invalid, no job is submitted.",
)
@json_option("With --dry-run or --from: print JSON instead of text.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@asking
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    *,
    table: str | None,
    wrap: str | None,
    wait_for_it: bool,
    parsable: bool,
    dry_run: bool,
    as_json: bool,
    command: tuple[str, ...],
    at: BrokerAt,
    **asked: Any,
) -> int:
    """Submit a job, and print its number as soon as the broker has stored the job on disk.

    COMMAND is a program with its arguments, or a job script; the script can contain options in lines that
    begin with `#RLSCHED` or `#SBATCH`.

    \b
    Example:
      rlsched submit --gpus 2 --name resnet -- python train.py --epochs 3
      rlsched submit --wait -- sh -c 'echo on $CUDA_VISIBLE_DEVICES'
      rlsched submit -t 1-12 --dependency afterok:17 train.sh
      rlsched submit --gpus 4 -t 12:00:00 --dry-run
      rlsched submit --from jobs.csv --priority low
    """
    if as_json and not dry_run and table is None:
        raise click.UsageError("--json: use it together with --dry-run or --from")
    if table is not None:
        odd = [
            name
            for name, given in (("a command", command), ("--wait", wait_for_it), ("--dry-run", dry_run))
            if given
        ]
        if odd:
            raise click.UsageError(f"--from and {odd[0]} exclude each other; leave out one")
        return _submit_table(ctx, table, at, parsable=parsable, as_json=as_json)
    if dry_run:
        from rlsched.cli.users.dry_run import print_dry_run

        with at.reach() as client:
            words = command_of(command, wrap) if command or wrap else ()
            print_dry_run(client, submission(asked), words, as_json=as_json)
        return 0
    words = command_of(command, wrap)
    with at.reach(is_patient=wait_for_it) as client:
        job = client.submit(words, **submission(asked))
        if not wait_for_it:
            click.echo(str(job) if parsable else f"job {job}")
            return 0
        click.echo(f"job {job}, waiting for its end", err=True)
        return _wait(client, job)


def _submit_table(ctx: click.Context, table: str, at: BrokerAt, *, parsable: bool, as_json: bool) -> int:
    """Queue all jobs of the file `table`; return the exit code."""
    from rlsched.cli.users.many_jobs import jobs_of, queue_all, read_rows
    from rlsched.terminal.show import count, print_json

    jobs = jobs_of(table, read_rows(table, ctx))
    with at.reach() as client:
        numbers = queue_all(client, table, jobs)
    if as_json:
        print_json(
            {"jobs": [{"line": job.line, "job": number} for job, number in zip(jobs, numbers, strict=True)]}
        )
    elif parsable:
        click.echo("\n".join(map(str, numbers)))
    else:
        run_on = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
        said = f"{numbers[0]} to {numbers[-1]}" if run_on else ", ".join(map(str, numbers))
        click.echo(f"{count(len(numbers), 'job')}: {said}")
    return 0


@click.command(cls=BatchCommand, context_settings=_ITS_OWN)
@job_options
@click.option(
    "-l", "--label", is_flag=True, help="Begin each line of output with the number of its task, as in srun."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@asking
@click.pass_context
def run(ctx: click.Context, /, *, command: tuple[str, ...], label: bool, at: BrokerAt, **asked: Any) -> int:
    """Run a job in the foreground: show its output live, and return its exit code.

    Ctrl-C cancels the job, and shows its output until its processes have ended; a second Ctrl-C exits at
    once. Closing the terminal also cancels the job, except under `nohup`.

    With --ntasks, --ntasks-per-node or --label, COMMAND runs as tasks, as in `srun`; else it runs once on
    each node of the job. Standard input is not forwarded to the job.

    \b
    Example:
      rlsched run --gpus 2 -- python train.py
      rlsched run -- nvidia-smi
      rlsched run -n 4 --gpus-per-task=1 -l -- python train.py
    """
    words = command_of(command, None)
    if asked["array"]:
        raise click.UsageError("--array: each task has its own output; use `rlsched submit` for arrays")
    has_launcher = ctx.get_parameter_source("launch") is ParameterSource.COMMANDLINE
    _note_input()
    own = as_tasks(words, asked, label=label, has_launcher=has_launcher)
    with at.reach(is_patient=True) as client, _as_ctrl_c():
        job = client.submit(own.command, **submission(own.asked))
        try:
            click.echo(f"job {job}", err=True)
            with _first_ctrl_c() as interrupts:
                return _shown(client, job, interrupts, own)
        except (KeyboardInterrupt, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EIO):
                raise
            with contextlib.suppress(InputError):  # it has ended
                client.cancel(job)
            with contextlib.suppress(OSError):  # standard error may be closed
                click.echo(f"job {job}: cancelled", err=True)
            return INTERRUPTED


def _note_input() -> None:
    """If standard input is a pipe or a file, print a note that the job does not get it."""
    import stat

    with contextlib.suppress(OSError):  # standard input is closed
        kind = os.fstat(0).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISREG(kind):
            click.echo(
                "note: standard input is not forwarded to the job; let its command read a file", err=True
            )


@contextlib.contextmanager
def _as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt in the `with` block at SIGTERM, and at SIGHUP (not under `nohup`)."""
    import signal

    from rlsched.signals import on_signals

    taken = [one for one in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(one) is signal.SIG_DFL]

    def end(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        for number in taken:  # a shell can repeat a signal during the cancellation
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with on_signals(end, taken):
        yield


@contextlib.contextmanager
def _first_ctrl_c() -> Iterator[list[int]]:
    """Append the first SIGINT in the `with` block to the yielded list; a second raises KeyboardInterrupt."""
    import signal

    from rlsched.signals import on_signals

    seen: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if seen:
            raise KeyboardInterrupt
        seen.append(signum)

    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with on_signals(note, [] if is_ignored else [signal.SIGINT]):
        yield seen


def _shown(client: Client, job: int, interrupts: list[int], own: AsTasks) -> int:
    """Print the output of all ranks of a job until the job has finished; return its exit code.

    When `interrupts` is no longer empty, the job is cancelled. The result is then `INTERRUPTED`.
    """
    from rlsched.cli.users.output import show_output
    from rlsched.client.following import num_ranks

    is_cancelled = False
    attempt_noted = 0

    def look(info: JobInfo | bytes) -> None:
        """Cancel the job after Ctrl-C. Print a note if an attempt has not as many nodes as `--nodes`."""
        nonlocal is_cancelled, attempt_noted
        if not isinstance(info, bytes) and info.nodes and info.attempt != attempt_noted:
            attempt_noted = info.attempt
            if note := own.note_on_nodes(num_ranks(info)):
                click.echo(note, err=True)
        if interrupts and not is_cancelled:
            is_cancelled = True
            with contextlib.suppress(InputError):  # it has ended
                client.cancel(job)
                click.echo(
                    f"job {job}: cancelling, waiting for its end; Ctrl-C again exits at once", err=True
                )

    show_output(client, job, to_its_end=True, labelled=own.labelled, each=look)
    return INTERRUPTED if interrupts else _code(client.job(job))


def _wait(client: Client, job: int) -> int:
    """Wait until a job has finished, and print its state changes; return its exit code."""
    from rlsched.cli.users.output import print_status, state_line

    said = ""

    def show_state(info: Any) -> None:
        nonlocal said
        line = state_line(info)
        if line != said:
            said = line
            print_status(line)

    try:
        return _code(client.wait(job, seen=show_state))
    except KeyboardInterrupt:
        click.echo(
            f"job {job} goes on; `rlsched cancel {job}` ends it, `rlsched logs -f {job}` follows it", err=True
        )
        return INTERRUPTED


def _code(info: Any) -> int:
    """Return the exit code of a job; 1 if it has no exit code, for example because it was cancelled."""
    return 1 if info.exit_code is None else int(info.exit_code)
