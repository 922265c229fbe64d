"""Prints the output of jobs on standard output, and their state changes on standard error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.job_number import called
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, FINISHED, QUEUED, REJECTED, RUNNING

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.wire.messages import JobInfo


def show_output(
    client: Client,
    job: int,
    *,
    to_its_end: bool,
    labelled: bool | None = None,
    each: Callable[[JobInfo | bytes], object] | None = None,
) -> bool:
    """Print the output of all ranks of a job; return whether there is any output.

    Args:
        job: Job number; the job need not have started.
        to_its_end: Whether to follow the output until the job has finished, and print each new state. Of a
            job that has already finished, only a state other than completed is printed.
        labelled: Whether lines begin with `RANK: `; None: they do if the job has several ranks.
        each: Function that is called with the job after each query, and with each piece of output.
    """
    said, last, silent = "", "", True
    try:
        for piece in client.output(job, to_its_end=to_its_end, labelled=labelled):
            if isinstance(piece, bytes):
                silent = False
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            elif to_its_end and (said or piece.state != COMPLETED) and (line := state_line(piece)) != said:
                said = line
                if piece.state in FINISHED:
                    last = line
                else:
                    print_status(line)
            if each is not None:
                each(piece)
    finally:
        if last:
            print_status(last)
    return not silent


def print_status(line: str) -> None:
    """Print a line on standard error, cut to the width of a terminal."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        line = line if len(line) <= columns else f"{line[: columns - 1]}…"
    click.echo(line, err=True)


def state_line(info: JobInfo) -> str:
    """Return a job's state as one line, with nodes and GPUs while it runs, or the reason for the state."""
    from rlsched.terminal.visible import visible

    more = ""
    if info.state == RUNNING and info.nodes:
        more = f" on {place(info)}"
    elif info.state in (QUEUED, RUNNING, FAILED, CANCELLED, REJECTED) and info.reason:
        more = f": {info.reason}"
    return visible(f"job {called(info)} {info.state}{more}")


def place(job: JobInfo) -> str:
    """Return the nodes and GPUs of a job as text: `n0[0-3] n1[0,2]`."""
    named = [f"{node}[{_ranges(gpus)}]" for node, gpus in zip(job.nodes, job.gpus, strict=True)]
    return " ".join([*named, *([f"+{job.nodes_omitted:,} nodes"] if job.nodes_omitted else [])])


def _ranges(numbers: list[int]) -> str:
    """Return numbers as sorted ranges: `0-3,6`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
