"""`rlsched trace convert`: converts published traces to the normal form, or checks and rewrites a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import PATH, json_option, shown
from rlsched.terminal.show import print_json

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.formats.account import Account, Tally
    from rlsched.workload.formats.frame import Conversion


@click.command()
@click.argument("files", metavar="[IN]... OUT", type=PATH, nargs=-1)
@click.option(
    "--from",
    "name",
    metavar="FORMAT",
    help="Format of IN: normal, helios, philly, pai, openb, acme, sacct or swf. [default: detected]",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Run sacct for the jobs since this time, such as 90d (ago) or 2024-01-01, instead of reading IN. "
    "Needs --from sacct.",
)
@click.option(
    "--until",
    metavar="TIME",
    help="With --since: end of the period for which sacct lists jobs. [default: now]",
)
@click.option("--strict", is_flag=True, help="Stop at the first malformed line instead of skipping it.")
@click.option(
    "--cluster-out",
    type=PATH,
    help="Write the nodes to this cluster file (TOML), if the format describes nodes.",
)
@click.option(
    "--timezone",
    metavar="NAME",
    help="Time zone of times that are written without a zone, such as Europe/Berlin. [default: "
    "America/Los_Angeles for philly; for sacct, times are not converted]",
)
@shown(
    "--processors",
    type=click.Choice(["cpus", "gpus"]),
    default="cpus",
    help="Meaning of the word processor in a file of the swf format: a CPU core or a GPU.",
)
@json_option("Print JSON: the numbers of rows read, rows kept, and rows skipped by reason.")
def convert(
    files: tuple[Path, ...],
    name: str | None,
    since: str | None,
    until: str | None,
    strict: bool,
    cluster_out: Path | None,
    timezone: str | None,
    processors: str,
    as_json: bool,
) -> None:
    """Convert a published trace or the output of sacct to rlsched's own format, the normal form.

    A trace in the normal form is checked and written in another file format. IN is a file, or the folder that
    a publisher provides. Without IN, `--from sacct --since 90d` runs sacct on this machine. Several outputs
    of sacct can be given, such as one per month; a line that occurs in two of them counts once.
    docs/reference/traces.md lists the content of each format, and the data that is lost. OUT is .csv, .csv.gz
    or .parquet. Jobs are sorted by submission; jobs of the same second keep their order. Malformed lines of a
    published trace are skipped and counted, with line numbers; in the normal form they are an error.

    \b
    Example:
      rlsched trace convert t.csv.gz t.parquet
      rlsched trace convert HeliosData/data/Venus venus.csv.gz --cluster-out venus.toml
      rlsched trace convert --from sacct --since 90d jobs.csv.gz
      rlsched trace convert --from sacct jobs.txt jobs.csv.gz --timezone Europe/Berlin --strict
      rlsched trace convert --from sacct january.txt february.txt jobs.csv.gz
    """
    with _source(files, name, since, until) as (sources, target):
        _convert(sources, target, name, strict, cluster_out, timezone, processors, as_json)


@contextmanager
def _source(
    files: tuple[Path, ...], name: str | None, since: str | None, until: str | None
) -> Iterator[tuple[tuple[Path, ...], Path]]:
    """Yield the input files and the output file. With `--since`, the input is a file with sacct's output."""
    import time

    from rlsched.cli.shared.when import span_s
    from rlsched.from_slurm.asking import answer, sacct
    from rlsched.workload.table_files import split_suffix

    asks = since is not None
    if len(files) != 1 if asks else len(files) < 2:
        expected = "only OUT (--since runs sacct)" if asks else "IN and OUT"
        raise click.UsageError(f"expected {expected}, got {len(files)} files")
    split_suffix(files[-1])
    if not asks:
        if until is not None:
            raise click.UsageError("--until: use it together with --since")
        yield files[:-1], files[-1]
        return
    if name != "sacct":
        raise click.UsageError("--since runs sacct: add --from sacct, or give IN instead of --since")
    since_s, until_s = span_s(since, until, time.time())
    assert since_s is not None
    instead = "run sacct on the cluster and give its output as IN (docs/reference/traces.md, sacct)"
    with answer(sacct(since_s, until_s), instead) as path:
        yield (path,), files[-1]


def _convert(
    sources: tuple[Path, ...],
    target: Path,
    name: str | None,
    strict: bool,
    cluster_out: Path | None,
    timezone: str | None,
    processors: str,
    as_json: bool,
) -> None:
    from rlsched.workload.formats.frame import Request
    from rlsched.workload.formats.registry import NORMAL, convert_original, no_gpus, recognise

    source = sources[0]
    name = name or recognise(source)
    if name == NORMAL:
        if len(sources) > 1:
            raise click.UsageError(f"IN: expected one file in rlsched's own format, got {len(sources)}")
        if cluster_out is not None or timezone is not None or processors != "cpus":
            raise click.UsageError(
                f"{source} looks like rlsched's own format, to which --cluster-out, --timezone and "
                "--processors do not apply; leave them out, or give another format with --from"
            )
        _rewrite(source, target, as_json)
        return
    called = None if cluster_out is None else cluster_out.name.removesuffix(".toml").removesuffix(".cluster")
    request = Request(source, strict, timezone, processors, called, sources[1:])
    conversion = convert_original(name, request)
    conversion.trace.write(target)
    if cluster_out is not None and conversion.cluster is not None:
        conversion.cluster.write(cluster_out)
    if as_json:
        print_json(_summary(name, conversion, source, target, cluster_out))
    else:
        _print(name, conversion, target, cluster_out)
    lacking = no_gpus(name, conversion.trace)
    if lacking is not None:
        click.echo(f"warning: {source}: {lacking}", err=True)


def _rewrite(source: Path, target: Path, as_json: bool) -> None:
    """Write a trace in the normal form to another file. Every row is kept, and an invalid row is an error."""
    from rlsched.workload.trace import Trace

    jobs = Trace.read(source)
    jobs.write(target)
    if as_json:
        one = {"rows": len(jobs), "kept": len(jobs), "skipped": {}, "noted": {}}
        head = {"format": "normal", "source": str(source), "trace": str(target), "cluster": None}
        print_json(head | one | {"tables": [{"file": str(source)} | one], "origin": None, "lost": []})
    else:
        click.echo(f"{target}: {len(jobs):,} jobs")


def _summary(
    name: str, conversion: Conversion, source: Path, target: Path, cluster_out: Path | None
) -> dict[str, Any]:
    tables = [_table(account) for account in conversion.accounts]
    head = {
        "format": name,
        "source": str(source),
        "trace": str(target),
        "cluster": None if cluster_out is None else str(cluster_out),
    }
    of_jobs = {key: value for key, value in tables[0].items() if key != "file"}
    if conversion.exports > 1:
        of_jobs = _of_exports(conversion.accounts[: conversion.exports])
    return head | of_jobs | {"tables": tables, "origin": conversion.origin, "lost": list(conversion.lost)}


def _of_exports(accounts: tuple[Account, ...]) -> dict[str, Any]:
    """Add up the counts of rows of several exports."""
    from rlsched.workload.formats.account import summed

    return {
        "rows": sum(account.rows for account in accounts),
        "kept": sum(account.kept for account in accounts),
        "skipped": _tallies(summed([account.skipped for account in accounts])),
        "noted": _tallies(summed([account.noted for account in accounts])),
    }


def _table(account: Account) -> dict[str, Any]:
    return {
        "file": str(account.path),
        "rows": account.rows,
        "kept": account.kept,
        "skipped": _tallies(account.skipped),
        "noted": _tallies(account.noted),
    }


def _tallies(tallies: dict[str, Tally]) -> dict[str, Any]:
    return {
        reason: {"count": tally.count, "lines": tally.lines, "example": tally.example or None}
        for reason, tally in tallies.items()
    }


def _print(name: str, conversion: Conversion, target: Path, cluster_out: Path | None) -> None:
    """Print the summary of a conversion as text."""
    click.echo(f"{target}: {len(conversion.trace):,} jobs from {name}, second 0 is {conversion.origin}")
    for account in conversion.accounts:
        skipped = account.rows - account.kept
        click.echo(f"{account.path}: {account.rows:,} rows, {account.kept:,} kept, {skipped:,} skipped")
        for heading, tallies in (("skipped", account.skipped), ("noted", account.noted)):
            for reason, tally in tallies.items():
                click.echo(f"  {heading} {tally.count:,}: {reason} ({_lines(tally)})")
                if tally.example:
                    click.echo(f"    line {tally.lines[0]}: {tally.example}")
    if cluster_out is not None and conversion.cluster is not None:
        click.echo(f"{cluster_out}: {_size(conversion.cluster)}")


def _lines(tally: Tally) -> str:
    shown = ", ".join(str(line) for line in tally.lines)
    more = tally.count - len(tally.lines)
    return f"line{'s' if tally.count > 1 else ''} {shown}" + (f" and {more:,} more" if more else "")


def _size(cluster: ClusterSpec) -> str:
    return f"{cluster.num_nodes:,} nodes, {cluster.num_gpus:,} GPUs"
