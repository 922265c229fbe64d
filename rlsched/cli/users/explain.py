"""`rlsched explain`: explains why a job got its GPUs, and which alternatives the policy had."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.cli.shared.options import JSON, PATH, shown
from rlsched.terminal.show import print_json, print_sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlsched.decisions.reading import Part, StoreReader

DEFAULT_HOURS: Final = 24.0
"""Default of `--hours`: time after a decision that `--instead` simulates, hours. Most jobs that wait at the
decision start within this time.
"""
MAX_STORES: Final = 8
"""Maximum number of stores that an error names."""
MOST_TRACE_S: Final = 1e11
"""Maximum absolute value of a time of `--at` in a trace, seconds: 3,000 years."""


@contextmanager
def _read_errors_are_input_errors() -> Iterator[None]:
    """Raise an `InputError` for an `OSError` of a store that cannot be read."""
    from rlsched.errors import InputError

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"the store of decisions cannot be read: {error}") from error


@click.command()
@click.argument("job", required=False)
@click.option(
    "--run",
    metavar="DIR",
    type=PATH,
    help="Directory of decisions that a broker or `rlsched evaluate --records` has recorded, or a folder "
    "that contains one such directory. [default: decisions of this machine's broker]",
)
@click.option(
    "--at",
    metavar="WHEN",
    help="Explain the state at this time: 14:02 (today), 2026-11-01T14:02 or 2h (ago); for the decisions of "
    "a replay: seconds since the start of the trace.",
)
@click.option(
    "--decision", type=click.IntRange(min=0), metavar="N", help="Explain the decision with this number."
)
@click.option(
    "--instead",
    metavar="CANDIDATE",
    help="Replay with another choice at --decision, or at the last start of JOB, and compare the outcomes. "
    "CANDIDATE is the number of an alternative in that decision, or `rule`: the choice of the rule on which "
    "the policy is based.",
)
@shown(
    "--hours",
    type=click.FloatRange(min=0.0, min_open=True),
    default=DEFAULT_HOURS,
    metavar="H",
    help="With --instead: simulated time to compare after the decision, hours; inf compares until the "
    "end of the trace.",
)
@click.option(
    "--within",
    "within_s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=math.inf,
    metavar="S",
    help="With --instead: fail if the replays take longer than this time, seconds.  [default: no limit]",
)
@JSON
@_read_errors_are_input_errors()
def explain(
    job: str | None,
    run: Path | None,
    at: str | None,
    decision: int | None,
    instead: str | None,
    hours: float,
    within_s: float,
    as_json: bool,
) -> None:
    """Explain why a job got its GPUs, and list the policy's alternatives.

    With --at and without JOB, show the queue at that time and the last decision before that time.

    \b
    Example:
      rlsched explain 123
      rlsched explain --at 14:02
      rlsched explain 123 --run runs/records/tuned --json
      rlsched explain 123 --instead rule
      rlsched explain --decision 1000 --instead 2 --hours 48 --run runs/records/tuned
    """
    from rlsched.decisions import story, story_lines
    from rlsched.decisions.reading import part_has
    from rlsched.errors import InputError
    from rlsched.terminal.visible import visible

    for name, parameter, value in (("--hours", "hours", hours), ("--within", "within_s", within_s)):
        if math.isnan(value):
            raise InputError(f"{name}: expected a number above 0, got nan")
        given = click.get_current_context().get_parameter_source(parameter)
        if instead is None and given is ParameterSource.COMMANDLINE:
            raise InputError(f"{name}: use it together with --instead")
    if instead is not None and decision is None and job is None:
        raise InputError("--instead: use it together with --decision N or JOB, to name the decision")
    if decision is not None and (job is not None or at is not None):
        raise InputError("--decision: names one decision by itself; leave out JOB and --at")
    if job is None and at is None and decision is None:
        raise InputError("expected a JOB, --at WHEN or --decision N; see rlsched explain --help")
    folder = _store(run)
    at_s = None if at is None else _when(folder, at)

    def has(part: Part) -> bool:
        if decision is not None:
            return part_has(folder, part, "decisions", "number", decision)
        if job is not None:
            return part_has(folder, part, "jobs", "job", job)
        return at_s is not None and part.first_s <= at_s

    reader = _part_that(folder, has)
    told: dict[str, Any]
    lines: Callable[[dict[str, Any]], list[str]]
    if job is not None and instead is not None and decision is None:
        found = story.job_of(reader, job)
        started = story.last_start(reader, found, at_s)
        told = story.job_story(reader, found, at_s)
        told["instead"] = _above("instead")(reader, started, instead, hours=hours, within_s=within_s)

        def lines(told: dict[str, Any]) -> list[str]:
            return [*story_lines.job_lines(told), *story_lines.instead_lines(told["instead"])]

    elif decision is not None:
        row = reader.row_of(decision)
        if row is None:
            raise InputError(f"{reader.folder}: no decision {decision} in this store; {_numbers(reader)}")
        if instead is not None:
            told = _above("instead")(reader, row, instead, hours=hours, within_s=within_s)
            lines = story_lines.instead_lines
        else:
            told, lines = story.decision(reader, row), story_lines.decision_lines
    elif job is not None:
        told, lines = story.job_story(reader, story.job_of(reader, job), at_s), story_lines.job_lines
    else:
        assert at_s is not None
        told, lines = story.moment(reader, at_s), story_lines.moment_lines
    if as_json:
        print_json(told)
        return
    print_sentences(visible(line) for line in lines(told))


def _above(name: str) -> Any:
    """Return an object of a package that this package must not import, through the entry point `name`."""
    from importlib.metadata import entry_points

    for point in entry_points(group="rlsched.interface", name=name):
        return point.load()
    from rlsched.errors import InputError

    raise InputError(f"this installation has no {name!r}: install rlsched again (pip install)")


def own_broker(kept: str = STORE_FOLDER) -> Path:
    """Return the directory of this machine's broker, as created by `rlsched broker` or `rlsched up`.

    If both commands have created a directory, return the directory of the running broker. If no broker runs,
    return the directory that was written last. Print the choice on standard error.

    Args:
        kept: File or folder that a directory must contain in order to count.
    """
    from rlsched.broker.journal.journal import JOURNAL_FILE
    from rlsched.files.lock import Holder
    from rlsched.transport.keys import default_home

    home = default_home()
    found = [folder for folder in (home / "broker", home / "up" / "broker") if (folder / kept).exists()]

    def liveliest(folder: Path) -> tuple[bool, float]:
        wrote_s = 0.0
        for file in [folder / kept, *(folder / kept).glob("*")]:
            with suppress(FileNotFoundError):  # the broker may remove its oldest files meanwhile
                wrote_s = max(wrote_s, file.stat().st_mtime)
        return Holder.read(folder / JOURNAL_FILE).runs(), wrote_s

    chosen = max(found, key=liveliest, default=home / "broker")
    if len(found) > 1:
        how = "runs" if liveliest(chosen)[0] else "wrote last"
        click.echo(f"using the broker in {chosen}, which {how}; give a directory to use another", err=True)
    return chosen


def _part_that(folder: Path, has: Callable[[Part], bool]) -> StoreReader:
    """Return a reader of one part of a decision store: the latest part for which `has` returns True.

    A part contains the decisions of one period. If there is no such part, return a reader of the latest part.
    """
    from rlsched.decisions.reading import StoreReader, parts

    found = parts(folder)[::-1]
    part = found[0] if len(found) == 1 else next((one for one in found if has(one)), found[0])
    reader = StoreReader(folder, part)
    reader.refresh()
    for name in reader.cut_short():
        click.echo(
            f"{folder / name}: its last rows are incomplete (a write in progress, or damage)", err=True
        )
    return reader


def _store(run: Path | None) -> Path:
    """Return the decision store in a folder or its subfolders; None: the store of this machine's broker.

    Raises:
        InputError: there is no store, or more than one.
    """
    from rlsched.decisions.reading import find_stores
    from rlsched.decisions.schema import read_info
    from rlsched.errors import InputError

    run = own_broker() if run is None else run
    stores = find_stores(run)
    if len(stores) > 1:
        names = ", ".join(list(stores)[:MAX_STORES])
        more = f" and {len(stores) - MAX_STORES} more" if len(stores) > MAX_STORES else ""
        raise InputError(f"--run {run}: {len(stores)} decision stores there; name one: {names}{more}")
    folder = next(iter(stores.values()), run)
    read_info(folder)
    return folder


def _numbers(reader: StoreReader) -> str:
    if not len(reader):
        return "the store has no decisions yet"
    return f"the store has decisions {reader.numbers.min()} to {reader.numbers.max()}"


def _when(folder: Path, text: str) -> float:
    """Return the time that the text of `--at` gives.

    In the store of a replay, times are seconds of the trace. In the store of a broker, they are Unix seconds;
    the text then has a form of `--since`, or is a time of today, such as 14:02.

    Raises:
        InputError: the text is not such a time.
    """
    import re
    import time

    from rlsched.cli.shared.when import unix_s
    from rlsched.decisions.schema import read_info
    from rlsched.errors import InputError

    if read_info(folder).time == "trace":
        try:
            seconds = float(text)
            if abs(seconds) <= MOST_TRACE_S:
                return seconds
        except ValueError:
            pass
        raise InputError(f"--at {text!r}: expected a number: times in this store are seconds of a trace")
    now_s, given = time.time(), text
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
        text = (
            f"{time.strftime('%F', time.localtime(now_s))}T{text.zfill(len(text) + (text.index(':') == 1))}"
        )
    try:
        return unix_s("--at", text, now_s)
    except InputError as error:
        raise InputError(f"--at {given!r}: expected 14:02, 2026-11-01T14:02, or an age such as 2h") from error
