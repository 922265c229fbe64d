"""`rlsched submit --from jobs.csv`: submits one job per row of a file. Its columns are named like options."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import click
from click.core import ParameterSource

from rlsched.cli.shared.bad_values import message_of
from rlsched.cli.shared.job_options import command_of, submission
from rlsched.errors import InputError, nearest

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.client.submitting import JobRefusedError

COMMAND: Final = "command"
"""Column with a program and its arguments, quoted as in a shell. (The column `wrap` has a shell command.)"""
_NOT_HERE: Final = ("from", "wait", "parsable", "dry-run", "json", "broker", "keys", "timeout-s", "help")
_YES, _NO = ("1", "yes", "true", "x"), ("", "0", "no", "false")


class JobRow(NamedTuple):
    """One job (row) of the CSV file.

    Attributes:
        line: Number of the line in which the row begins, from 1.
        asked: Option of `submit` -> its value.
    """

    line: int
    asked: dict[str, Any]


def read_rows(path: str, ctx: click.Context) -> list[JobRow]:
    """Read the jobs in a CSV file, or on standard input for `-`.

    For an empty cell, the option has its value from the command line, or else its default.

    Raises:
        InputError: the file cannot be read, or a row is invalid; the message names the line.
    """
    try:
        with sys.stdin if path == "-" else Path(path).open(encoding="utf-8-sig", newline="") as file:
            return list(_rows(path, file, ctx))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text: {error}") from error
    except csv.Error as error:
        raise InputError(f"{path}: expected comma-separated values: {error}") from error


def _rows(path: str, file: TextIO, ctx: click.Context) -> Iterator[JobRow]:
    reader = csv.reader(file, strict=True)
    names = [name.removeprefix("\ufeff") for name in next(reader, [])]  # byte order mark of standard input
    header = [name.strip().lstrip("-").replace("_", "-") for name in names]
    options = _options(path, header, ctx)
    any_row = False
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        if cells is None:
            break
        if not any(cell.strip() for cell in cells):
            continue
        any_row = True
        try:
            if len(cells) != len(header):
                raise InputError(f"expected {len(header)} values, as in the first line, got {len(cells)}")
            given = dict(zip(header, (cell.strip() for cell in cells), strict=True))
            yield JobRow(line, _asked(given, options, ctx))
        except (InputError, click.UsageError) as error:
            raise _at(path, line, error) from error
    if not any_row:
        raise InputError(f"{path}: expected a line of column names, then one job per line")


def _options(path: str, header: list[str], ctx: click.Context) -> dict[str, click.Option]:
    """Return a dict: column -> the option that it sets.

    Raises:
        InputError: a column is not named like an option, or occurs twice.
    """
    known = {
        name.lstrip("-"): option
        for option in ctx.command.params
        if isinstance(option, click.Option)
        for name in option.opts
        if name.startswith("--") and name.lstrip("-") not in _NOT_HERE
    }
    if not {COMMAND, "wrap"} & set(header):
        raise InputError(f"{path}, line 1: expected column names, one of them {COMMAND} or wrap")
    found: dict[str, click.Option] = {}
    for name in header:
        if name != COMMAND and name not in known:
            hint = nearest(name, [COMMAND, *known])
            raise InputError(
                f"{path}, line 1: no option of `rlsched submit` is called {name!r}; {hint}".rstrip("; ")
            )
        if name in found or header.count(name) > 1:
            raise InputError(f"{path}, line 1: column {name!r} occurs twice")
        if name != COMMAND:
            found[name] = known[name]
    return found


def _asked(given: dict[str, str], options: dict[str, click.Option], ctx: click.Context) -> dict[str, Any]:
    """Return the option values of a row; for an empty cell, the value on the command line or the default."""
    words: list[str] = []
    for name, option in options.items():
        value = given[name]
        if not option.is_flag:
            words += [f"--{name}", value] if value else []
        elif value.lower() in _YES:
            words.append(f"--{name}")
        elif value.lower() not in _NO:
            raise InputError(f"{name}: expected yes or no, got {value!r}")
    try:
        command = shlex.split(given.get(COMMAND, ""))
    except ValueError as error:
        raise InputError(f"{COMMAND}: {error}: {given[COMMAND]!r}") from error
    if not command and not given.get("wrap"):
        raise InputError(f"expected a value in the column {COMMAND} or wrap")
    typed = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if "launch" in typed and not given.get("launch"):
        words += ["--launch", ctx.params["launch"]]  # a script with `#SBATCH` lines depends on it
    row = ctx.command.make_context(ctx.info_name, [*words, "--", *command])
    asked = dict(row.params)
    for name in typed:
        if row.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            own = asked["env"] if name == "env" else ()  # of a script with `#SBATCH` lines
            asked[name] = (*own, *ctx.params[name]) if own else ctx.params[name]
    return asked


class RowSubmission(NamedTuple):
    """A parsed job: the line of its row, its command, and keyword arguments for `Client.submit`."""

    line: int
    command: list[str]
    keywords: dict[str, Any]


def jobs_of(path: str, rows: list[JobRow]) -> list[RowSubmission]:
    """Return the parsed jobs of the rows.

    Raises:
        InputError: a row is invalid; the message names its line.
    """
    found = []
    for line, asked in rows:
        try:
            found.append(RowSubmission(line, command_of(asked["command"], asked["wrap"]), submission(asked)))
        except (InputError, click.UsageError) as error:
            raise _at(path, line, error) from error
    return found


def queue_all(client: Client, path: str, jobs: list[RowSubmission]) -> list[int]:
    """Queue all jobs, and return their numbers. Show a progress bar on a terminal.

    If the broker rejects a job, usually no job is queued. For the exception, see `submitting.submit_many`.

    Raises:
        InputError: the broker rejects a job. The message names the line of the job, and the jobs that are
            already queued.
    """
    from rlsched.client.submitting import JobRefusedError, as_submit

    messages = []
    for job in jobs:
        try:
            messages.append(as_submit(job.command, **job.keywords))
        except InputError as error:
            raise _at(path, job.line, error) from error
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=len(jobs), label="queued", file=sys.stderr, hidden=hidden) as bar:
        try:
            return client.submit_many(messages, seen=lambda done: bar.update(done - bar.pos))
        except JobRefusedError as error:
            raise _at(path, jobs[error.place].line, InputError(_refused(error, jobs))) from error


def _refused(error: JobRefusedError, jobs: list[RowSubmission]) -> str:
    """Return an error text: why the broker rejected a row, and which earlier rows it has queued."""
    if not error.queued:
        return f"{error.why}; nothing is queued"
    last = jobs[len(error.queued) - 1].line
    numbers = f"{error.queued[0]} to {error.queued[-1]}"
    return f"{error.why}; the rows up to line {last} are queued as jobs {numbers}, the others are not"


def _at(path: str, line: int, error: InputError | click.UsageError) -> InputError:
    said = message_of(error) if isinstance(error, click.UsageError) else str(error)
    return InputError(f"{path}, line {line}: {said}")
