"""`rlsched shadow`: reports per day what `rlsched engine slurm --shadow` has recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rlsched.cli.shared.options import PATH, json_option


@click.command()
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--day", metavar="YYYY-MM-DD", help="Report only this day, in local time. [default: all days]")
@json_option("Print the report as JSON.")
@click.option(
    "--html", "html_path", type=PATH, metavar="FILE", help="Write the report to this file, as a web page."
)
def shadow(directory: Path, day: str | None, as_json: bool, html_path: Path | None) -> int:
    """Report per day how often a shadow policy agreed with your Slurm, and how waits change in a replay.

    DIR is the --dir of `rlsched engine slurm --shadow`, which can still be running. Differences in waiting
    time are reported only if a replay by your Slurm's own rule comes close to the recorded starts.

    \b
    Example:
      rlsched shadow /var/lib/rlsched/shadow
      rlsched shadow /var/lib/rlsched/shadow --day 2026-11-25 --html day.html
    """
    if sys.stderr.isatty():
        click.echo(f"reading {directory}", err=True)
    import msgspec

    from rlsched.terminal.show import print_json, print_table
    from rlsched_agents.shadow import tables
    from rlsched_agents.shadow.report import report

    if html_path is not None:
        import rlsched_agents.shadow.page as page  # reports a missing extra before the long run
    found = report(directory, day)
    if html_path is not None:
        page.write_page(found, html_path)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return 0
    click.echo(
        f"shadow of Slurm's cluster {found.cluster}, partitions {', '.join(found.partitions)}: policy "
        f"{found.policy}; at the end of the period, this policy wants to start {found.guarding.standing:,} "
        "waiting jobs\n"
    )
    for one in tables.all_of(found):
        if one.rows:
            print_table(one.title, one.columns, one.rows, one.note)
    if found.refused:
        click.echo(f"no results about waiting times: {found.refused}")
    return 0
