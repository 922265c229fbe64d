"""The verbs `queue`, `why` and `logs`, which show jobs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.job_number import JobName, JobParam
from rlsched.cli.shared.listing import LIST_CONTEXT, LONG, check_columns, listed, listing, sorted_by
from rlsched.cli.shared.options import JSON, BrokerAt, asking, json_option
from rlsched.cli.shared.selecting import (
    NUMBERS,
    jobs_on,
    names_finished,
    of_numbers,
    of_whom,
    selected,
    selecting,
)
from rlsched.terminal.show import print_json, print_sentences
from rlsched.wire.states import FAILED

if TYPE_CHECKING:
    from rlsched.client.client import Client


LAST_LINES = 10
"""Number of output lines that `why` shows for a failed job."""


@click.command(context_settings=LIST_CONTEXT)
@click.option(
    "--all",
    "finished",
    is_flag=True,
    help="Also list finished jobs, as with --state all or a finished state.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the newest N jobs.  [default: all jobs; 2000 with --all]",
)
@selecting
@click.option(
    "--since",
    metavar="WHEN",
    help="Only jobs submitted at or after this time: an age (30min, 12h, 7d, 2w), a date (2026-11-01) or a "
    "time (2026-11-01T13:30).",
)
@NUMBERS
@click.option("-A", "--account", metavar="NAME,...", help="Only jobs of these accounts.")
@click.option(
    "-w",
    "--nodelist",
    metavar="NAME,...",
    help="Only jobs with processes on these nodes; names, or glob patterns, separated by commas.",
)
@LONG
@listing
@click.option(
    "--before", type=click.IntRange(min=1), metavar="JOB", help="Only jobs whose number is lower than JOB."
)
@JSON
@asking
def queue(
    *,
    finished: bool,
    limit: int | None,
    before: int | None,
    since: str | None,
    sort: str | None,
    columns: str | None,
    watch: float | None,
    no_heading: bool,
    numbers: str | None,
    account: str | None,
    nodelist: str | None,
    _long: bool,
    as_json: bool,
    at: BrokerAt,
    **wanted: Any,
) -> None:
    """List waiting and running jobs, sorted by number.

    \b
    Example:
      rlsched queue
      rlsched queue --user ada --state queued --sort queue_key
      rlsched queue -o job,name,state,reason --watch 2
      rlsched queue --all --limit 50 --before 1200 --json
    """
    from rlsched.cli.shared.job_tables import job_lines
    from rlsched.cli.shared.when import span_s
    from rlsched.wire.messages import JobInfo

    check_columns(columns, sort, JobInfo)
    since_s, _ = span_s(since, None, time.time())
    left_out: list[str] = []

    def fetch(client: Client) -> list[JobInfo]:
        found = client.list_jobs(
            finished=finished or names_finished(wanted["state"]), limit=limit, before=before
        )
        left_out.clear()
        if found.jobs and found.omitted:
            lists = f"--before {found.jobs[0].job} lists them"
            left_out.append(f"{found.omitted:,} older jobs were left out; {lists}")
        there = None if nodelist is None else jobs_on(client.nodes(), nodelist)
        since_then = (
            job
            for job in found.jobs
            if since_s is None or job.submit_s >= since_s
            if account is None or job.account in account.split(",")
            if there is None or job.job in there
        )
        chosen = of_numbers(selected(since_then, of_whom(client, wanted), arrays_wait=True), numbers)
        return sorted_by(chosen, sort, JobInfo)

    listed(
        "queue",
        at.reach,
        fetch,
        job_lines,
        columns=columns,
        as_json=as_json,
        watch=watch,
        no_heading=no_heading,
    )
    for line in left_out:
        click.echo(line, err=True)


@click.command()
@click.argument("job", type=JobParam())
@json_option("Print JSON instead of text, including the stored record of the decision.")
@asking
def why(job: JobName, as_json: bool, at: BrokerAt) -> None:
    """Explain why a job waits, or why it runs where it does.

    \b
    Example:
      rlsched why 7
    """
    from rlsched.client.following import tail

    with at.reach() as client:
        number = job.number_at(client)
        explanation, info = client.why(number), client.job(number)
        ends = tail(client, info).lines(LAST_LINES) if info.state == FAILED else []
    last = [line.decode(errors="replace") for line in ends]
    if as_json:
        from rlsched.cli.shared.job_tables import explanation_as_data

        print_json(explanation_as_data(explanation) | {"last_output": last})
        return
    from rlsched.terminal.visible import visible

    print_sentences(visible(line) for line in str(explanation).split("\n"))
    if last:
        click.echo(f"  its output ends with (all of it: rlsched logs {job}):")
    for line in last:
        click.echo(visible(f"    {line}"))


@click.command()
@click.argument("job", type=JobParam())
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print output as it is written until the job has finished; if the job has not started, wait for "
    "its start.",
)
@click.option(
    "--rank", type=click.IntRange(min=0), help="Show only the output of this rank.  [default: all ranks]"
)
@asking
def logs(job: JobName, follow: bool, rank: int | None, at: BrokerAt) -> None:
    """Show the output of a job. If the job has several ranks, each line begins with its rank.

    \b
    Example:
      rlsched logs 7
      rlsched logs -f --rank 1 7
    """
    from rlsched.cli.users.output import show_output

    with at.reach(is_patient=follow) as client:
        number = job.number_at(client)
        if rank is None:
            silent = not show_output(client, number, to_its_end=follow)
        else:
            silent = True
            for piece in client.log(number, rank=rank, follow=follow):
                silent = False
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        if silent:
            click.echo(f"job {job} has no output: it is {client.job(number).state}", err=True)
