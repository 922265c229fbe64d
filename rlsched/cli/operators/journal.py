"""`rlsched journal`: checks, exports, backs up, restores and compacts the broker's journal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import JSON, PATH, directory_option, shown

if TYPE_CHECKING:
    from rlsched.broker.journal.journal import Journal

from rlsched.terminal.show import print_json, size

_DIR = directory_option(
    "Directory of the broker. [default: broker or up/broker (of `rlsched up`) in $RLSCHED_HOME, else in "
    "~/.config/rlsched; if both exist, the directory of a running broker, else the one written last]"
)


def _directory(directory: Path | None) -> Path:
    from rlsched.broker.journal.replay import JOURNAL_FILE
    from rlsched.cli.users.explain import own_broker

    return own_broker(JOURNAL_FILE) if directory is None else directory


def _journal(directory: Path | None, file: Path | None = None) -> Path:
    from rlsched.broker.journal.replay import JOURNAL_FILE

    file = file or _directory(directory)
    return file / JOURNAL_FILE if file.is_dir() else file


@click.group()
def journal() -> None:
    """Check, export, back up, restore and compact the broker's journal.

    The journal is the broker's record of events on disk, from which a restarted broker recovers its state.

    \b
    Example:
      rlsched journal backup /backups/journal-$(date +%F).sqlite     # while the broker runs
      rlsched journal restore /backups/journal-2026-11-01.sqlite     # while it is stopped
    """


@journal.command()
@click.argument("file", required=False, type=PATH)
@_DIR
@JSON
def check(file: Path | None, directory: Path | None, as_json: bool) -> int:
    """Check the whole journal, or the whole backup FILE, for damage.

    The exit code is 1 if the journal is damaged.

    \b
    Example:
      rlsched journal check
      rlsched journal check /backups/journal-2026-11-01.sqlite --json
    """
    import msgspec

    from rlsched.broker.journal.checking import check as check_journal

    report = check_journal(_journal(directory, file))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        jobs = ", ".join(f"{count} {state}" for state, count in report.jobs.items())
        when = time.strftime("%F %T", time.localtime(report.last_s)) if report.entries else "never"
        state = "damaged" if report.damage or report.derived else "whole"
        click.echo(
            f"{report.path}: {state}, version {report.version}, "
            f"{report.entries} entries{_replaced(report.replaced)}, the last at {when}, "
            f"epoch {report.epoch}, {size(report.bytes)}{'; jobs: ' + jobs if jobs else ''}"
        )
        for line in [*report.damage, *report.derived]:
            click.echo(f"  {line}")
        if report.damage:
            click.echo("restore a backup: `rlsched journal restore FILE`")
    return 1 if report.damage or report.derived else 0


def _replaced(count: int) -> str:
    return f" and a base for {count} earlier ones" if count else ""


@journal.command()
@click.argument("file", required=False, type=PATH)
@click.option("-o", "--output", metavar="FILE", type=PATH, help="File to write. [default: standard output]")
@_DIR
def export(file: Path | None, output: Path | None, directory: Path | None) -> None:
    """Write the journal, or the backup FILE, as JSON lines.

    Each line has the number of an entry (n), its time (now_s, Unix seconds) and its content (entry). Entries
    contain the environment variables of jobs.

    \b
    Example:
      rlsched journal export | jq -c 'select(.entry.type == "job_submitted") | .entry.name'
    """
    import msgspec

    from rlsched.broker.journal.reading import reading
    from rlsched.errors import InputError

    encoder = msgspec.json.Encoder()
    try:
        with reading(_journal(directory, file)) as found, click.open_file(str(output or "-"), "wb") as out:
            for row in found.rows():
                out.write(encoder.encode(row._asdict()) + b"\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{output or 'standard output'}: cannot write: {error.strerror}") from error


@journal.command()
@click.argument("target", type=PATH)
@_DIR
@JSON
def backup(target: Path, directory: Path | None, as_json: bool) -> None:
    """Copy the journal to the new file TARGET; the broker can be running.

    \b
    Example:
      rlsched journal backup /backups/journal-$(date +%F).sqlite
    """
    from rlsched.broker.journal.backup import back_up

    entries = back_up(_journal(directory), target)
    if as_json:
        print_json({"path": str(target), "entries": entries, "bytes": target.stat().st_size})
        return
    click.echo(f"{target}: {entries} entries, {size(target.stat().st_size)}")


@journal.command()
@click.argument("file", type=PATH)
@_DIR
@JSON
def restore(file: Path, directory: Path | None, as_json: bool) -> None:
    """Restore the backup FILE as the broker's journal; the broker must not be running.

    The old journal is kept in the same directory. New jobs get numbers far above all earlier numbers. Running
    jobs continue. Nodes get no new jobs until all nodes of the backup have registered or are declared down,
    or until `rlsched node resume`.

    \b
    Example:
      rlsched journal restore /backups/journal-2026-11-01.sqlite
    """
    import msgspec

    from rlsched.broker.journal.backup import restore as take_up

    found = take_up(file, _directory(directory))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    when = time.strftime("%F %T", time.localtime(found.last_s))
    click.echo(
        f"restored {found.entries} entries up to {when}: the next broker's epoch is {found.epoch + 1}, the "
        f"next job's number {found.last_number + 1}"
    )
    click.echo(
        "nodes get no new jobs until all nodes of the backup have registered; first start the daemons of "
        "nodes added since then. For a dead node: `rlsched node down NAME`"
    )
    if found.kept:
        click.echo(f"the old journal is kept as {found.kept}")


@journal.command()
@click.option(
    "--remake-ended",
    is_flag=True,
    help="Rebuild the table of finished jobs from the journal's entries, if `rlsched journal check` reports "
    "that the table is damaged.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=1.0),
    metavar="DAYS",
    help="Replace entries older than this number of days by a summary; finished jobs remain listed.",
)
@shown(
    "--fair-share",
    "half_life",
    default="off",
    metavar="HALF_LIFE",
    help="With --keep-days: half-life with which the broker runs (rlsched broker --fair-share), such as 7d.",
)
@_DIR
@JSON
def compact(
    remake_ended: bool, keep_days: float | None, half_life: str, directory: Path | None, as_json: bool
) -> None:
    """Return unused space of the journal to the file system; the broker must not be running.

    \b
    Example:
      rlsched journal compact
      rlsched journal compact --keep-days 90      # `rlsched broker --keep-days 90` does it automatically
    """
    from rlsched.broker.journal.journal import Journal
    from rlsched.cli.operators.serve import time_s

    path = _journal(directory)
    if not path.is_file():
        from rlsched.errors import JournalError

        raise JournalError(f"{path}: there is no journal here")
    before, replaced = path.stat().st_size, 0
    opened = Journal(path)
    try:
        if remake_ended:
            from rlsched.broker.journal.recovery import remake_ended as make_anew

            make_anew(opened)
        if keep_days is not None:
            replaced = _replace(opened, keep_days, time_s("--fair-share", half_life))
        opened.compact()
    finally:
        opened.close()
    after = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes_before": before, "bytes": after, "entries_replaced": replaced})
        return
    click.echo(f"{path}: {size(before)}, now {size(after)}")
    if keep_days is not None:
        click.echo(
            f"{replaced} entries are replaced by a summary"
            if replaced
            else f"no entries were replaced: too few are older than {keep_days:g} days"
        )


def _replace(journal: Journal, keep_days: float, half_life_s: float) -> int:
    """Replace entries older than `keep_days` by a summary; return the number of replaced entries."""
    from rlsched.broker.compaction.compaction import DAY_S, made, put

    first = journal.first
    cut = made(journal.path, time.time() - keep_days * DAY_S, half_life_s)
    if cut is None or not put(journal, cut):
        return 0
    while journal.drop():
        pass
    return cut.n - first + 1
