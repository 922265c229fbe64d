"""`rlsched journal`: look after the broker's journal: check, export, back up, restore, compact."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rlsched.cli.show import print_json

_DIR = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The broker's directory. [default: HOME/broker, HOME being $RLSCHED_HOME or ~/.config/rlsched]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


def _directory(directory: Path | None) -> Path:
    from rlsched.broker.keys import default_home

    return directory or default_home() / "broker"


def _journal(directory: Path | None, file: Path | None = None) -> Path:
    from rlsched.broker.replay import JOURNAL_FILE

    return file or _directory(directory) / JOURNAL_FILE


@click.group()
def journal() -> None:
    """Check, export, back up, restore and compact the broker's journal.

    \b
    Example:
      rlsched journal backup /backups/journal-$(date +%F).sqlite     # while the broker runs
      rlsched journal restore /backups/journal-2026-11-01.sqlite     # while it does not
    """


@journal.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@_DIR
@_JSON
def check(file: Path | None, directory: Path | None, as_json: bool) -> int:
    """Read a journal, or the backup FILE, to its end and say whether it is whole. Exit code 1: it is not.

    \b
    Example:
      rlsched journal check
      rlsched journal check /backups/journal-2026-11-01.sqlite --json
    """
    import msgspec

    from rlsched.broker.checking import check as look

    report = look(_journal(directory, file))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        jobs = ", ".join(f"{count} {state}" for state, count in report.jobs.items())
        when = time.strftime("%F %T", time.localtime(report.last_s)) if report.entries else "never"
        state = "damaged" if report.damage or report.derived else "whole"
        click.echo(
            f"{report.path}: {state}, version {report.version}, "
            f"{report.entries} entries, the last at {when}, epoch {report.epoch}, "
            f"{report.bytes / 1e6:.1f} MB{'; jobs: ' + jobs if jobs else ''}"
        )
        for line in [*report.damage, *report.derived]:
            click.echo(f"  {line}")
        if report.damage:
            click.echo("take up a backup: `rlsched journal restore FILE`")
    return 1 if report.damage or report.derived else 0


@journal.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="[default: stdout]")
@_DIR
def export(file: Path | None, output: Path | None, directory: Path | None) -> None:
    """Write a journal, or the backup FILE, as JSON lines: n, now_s, and the entry. It holds environments.

    \b
    Example:
      rlsched journal export | jq -c 'select(.entry.type == "job_submitted") | .entry.name'
    """
    import msgspec

    from rlsched.broker.journal import reading
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
@click.argument("target", type=click.Path(path_type=Path))
@_DIR
@_JSON
def backup(target: Path, directory: Path | None, as_json: bool) -> None:
    """Copy the journal into the new file TARGET, also while the broker runs.

    \b
    Example:
      rlsched journal backup /backups/journal-$(date +%F).sqlite
    """
    from rlsched.broker.backup import back_up

    entries = back_up(_journal(directory), target)
    if as_json:
        print_json({"path": str(target), "entries": entries, "bytes": target.stat().st_size})
        return
    click.echo(f"{target}: {entries} entries, {target.stat().st_size / 1e6:.1f} MB")


@journal.command()
@click.argument("file", type=click.Path(path_type=Path))
@_DIR
@_JSON
def restore(file: Path, directory: Path | None, as_json: bool) -> None:
    """Take up the backup FILE. The broker must not run. What was there is kept beside it.

    Job numbers go on far above those that were given. What nodes run goes on; nodes get no new jobs until
    all is known that still runs, --lost-after at most, or until `rlsched node resume`.

    \b
    Example:
      rlsched journal restore /backups/journal-2026-11-01.sqlite
    """
    import msgspec

    from rlsched.broker.backup import restore as take_up

    found = take_up(file, _directory(directory))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    when = time.strftime("%F %T", time.localtime(found.last_s))
    click.echo(
        f"restored {found.entries} entries up to {when}: the next broker's epoch is {found.epoch + 1}, the "
        f"next job's number {found.last_number + 1}"
    )
    if found.cancelled:
        numbers = ", ".join(map(str, found.cancelled))
        click.echo(f"jobs {numbers} waited, may have run since and must not run twice: they are cancelled")
    if found.kept:
        click.echo(f"what was there is {found.kept}")


@journal.command()
@click.option(
    "--remake-ended",
    is_flag=True,
    help="Make the table of ended jobs anew from the entries, where `check` says that it is damaged.",
)
@_DIR
@_JSON
def compact(remake_ended: bool, directory: Path | None, as_json: bool) -> None:
    """Give space that the journal does not use back to the disk. The broker must not run.

    \b
    Example:
      rlsched journal compact
    """
    from rlsched.broker.journal import Journal

    path = _journal(directory)
    if not path.is_file():
        from rlsched.errors import JournalError

        raise JournalError(f"{path}: there is no journal here")
    before = path.stat().st_size
    opened = Journal(path)
    try:
        if remake_ended:
            from rlsched.broker.recovery import remake_ended as make_anew

            make_anew(opened)
        opened.compact()
    finally:
        opened.close()
    after = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes_before": before, "bytes": after})
        return
    click.echo(f"{path}: {before / 1e6:.1f} MB, now {after / 1e6:.1f} MB")
