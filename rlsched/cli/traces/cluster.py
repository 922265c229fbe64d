"""`rlsched cluster import`: writes a cluster file with the nodes that Slurm reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import JSON, PATH, shown
from rlsched.terminal.show import print_json

if TYPE_CHECKING:
    from rlsched.from_slurm.downtimes import Downtimes
    from rlsched.from_slurm.nodes import Imported

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_ASK = "ask"
_A_FILE = "run it on the cluster and give its output as a file"


@click.group(context_settings=_HELP)
def cluster() -> None:
    """Make a cluster file from the nodes of a Slurm cluster.

    \b
    Example:
      rlsched cluster import -o c.toml
    """


@cluster.command("import")
@click.argument("source", metavar="[IN]", type=PATH, required=False)
@click.option("-o", "--out", required=True, type=PATH, metavar="C", help="Cluster file (TOML) to write.")
@shown(
    "--from",
    "form",
    type=click.Choice(["scontrol", "sinfo"]),
    default="scontrol",
    help="Slurm command to run if IN is not given. If IN is given, this option has no effect, because the "
    "format of IN is detected.",
)
@click.option("--name", metavar="NAME", help="Name of the cluster. [default: name of the cluster file]")
@click.option(
    "--events",
    is_flag=False,
    flag_value=_ASK,
    metavar="[FILE]",
    help="Add the downtimes of nodes from FILE, the output of `sacctmgr --parsable2 show event`; without "
    "FILE, sacctmgr is run. The downtimes are written to a CSV file next to the cluster file. Needs "
    "--origin.",
)
@click.option(
    "--origin",
    metavar="TIME|TRACE",
    help="Time at which the trace begins (its second 0), from which downtimes count: a time as `rlsched "
    "trace convert` prints it, or the trace file that it wrote.",
)
@click.option(
    "--timezone",
    metavar="NAME",
    help="Time zone of the times in the event file, such as Europe/Berlin; must be the time zone of the "
    "trace.",
)
@JSON
def import_(
    source: Path | None,
    out: Path,
    form: str,
    name: str | None,
    events: str | None,
    origin: str | None,
    timezone: str | None,
    as_json: bool,
) -> None:
    """Write a cluster file from the nodes of a Slurm cluster.

    IN is the output of `scontrol show node`, or of `sinfo -N -h -o '%N|%R|%c|%m|%G|%T'`. Without IN, scontrol
    is run on this machine. A partition that shares no nodes with others becomes a virtual cluster. A node of
    several partitions runs jobs of all its partitions.

    \b
    Example:
      rlsched cluster import -o c.toml
      rlsched cluster import nodes.txt --events events.txt --origin '2024-01-01 00:00:07' -o c.toml
      rlsched cluster import --events --origin jobs.csv.gz -o c.toml
    """
    from rlsched.errors import InputError
    from rlsched.from_slurm.asking import ask
    from rlsched.from_slurm.nodes import SCONTROL, SINFO, imported

    if out.suffix != ".toml":
        raise InputError(f"--out {out}: expected a name that ends in .toml: a cluster file is TOML")
    if (events is None) != (origin is None):
        raise InputError(
            "expected --events and --origin together, because downtimes count from second 0 of the trace"
        )
    if source is not None:
        text, where = _read(source), str(source)
    else:
        command = SCONTROL if form == "scontrol" else SINFO
        text, where = ask(command, _A_FILE), form
    found = imported(text, name or out.stem, where)
    spec, downtimes = found.cluster, None
    if events is not None and origin is not None:
        downtimes = _downtimes(found, events, origin, timezone)
        beside = out.with_suffix(".events.csv")
        downtimes.write(beside)
        import msgspec

        spec = msgspec.structs.replace(spec, node_events=beside.name)
    spec.write(out)
    if as_json:
        print_json(
            {
                "cluster": str(out),
                "nodes": spec.num_nodes,
                "gpus": spec.num_gpus,
                "vcs": sorted({group.vc for group in spec.nodes if group.vc}),
                "names": found.names,
                "notes": list(found.notes),
                "node_events": None if downtimes is None else str(out.with_suffix(".events.csv")),
                "events": None if downtimes is None else len(downtimes.changes),
                "events_skipped": None if downtimes is None else downtimes.skipped,
            }
        )
        return
    click.echo(f"{out}: {spec.num_nodes:,} nodes, {spec.num_gpus:,} GPUs")
    for note in found.notes:
        click.echo(f"  {note}")
    if downtimes is not None:
        click.echo(f"{out.with_suffix('.events.csv')}: {len(downtimes.changes):,} node events")
        for reason, count in downtimes.skipped.items():
            click.echo(f"  left out {count:,}: {reason}")


def _downtimes(found: Imported, events: str, origin: str, timezone: str | None) -> Downtimes:
    from rlsched.errors import InputError
    from rlsched.from_slurm.asking import ask, sacctmgr_events
    from rlsched.from_slurm.downtimes import downtimes
    from rlsched.workload.formats.account import MalformedError
    from rlsched.workload.formats.clock import TimeParser
    from rlsched.workload.table_files import SUFFIXES

    clock = TimeParser(timezone)
    if origin.lower().endswith(SUFFIXES):
        origin = _origin_of(Path(origin))
    try:
        origin_s = float(origin) if origin.isdecimal() else clock.read(origin, "--origin")
    except MalformedError as error:
        raise InputError(f"--origin: {error}") from error
    if origin_s is None:
        raise InputError(f"--origin {origin!r}: expected a time such as 2024-01-01 00:00:07")
    if events == _ASK:
        text, where = ask(sacctmgr_events(min(origin_s, time.time())), _A_FILE), "sacctmgr"
    else:
        text, where = _read(Path(events)), events
    return downtimes(text, found.names, origin_s, clock, where)


def _origin_of(path: Path) -> str:
    from rlsched.errors import InputError
    from rlsched.workload.trace import Trace

    origin = Trace.read(path).origin
    if origin is None:
        raise InputError(
            f"--origin {path}: this trace has no column `origin`; "
            "give the wall-clock time at which its times are 0"
        )
    return origin.isoformat()


def _read(path: Path) -> str:
    from rlsched.errors import InputError

    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot read this file: {error.strerror}") from error
