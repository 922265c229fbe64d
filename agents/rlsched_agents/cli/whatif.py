"""`rlsched whatif`: what other policies would have made of a site's history, if a replay is true to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.policies import PolicyCommand, said, setting

if TYPE_CHECKING:
    from rlsched_agents.whatif.found import WhatIf
    from rlsched_agents.whatif.site import Tell

_FILE = click.Path(path_type=Path)


@click.command(cls=PolicyCommand)
@click.argument("history", metavar="HISTORY", type=_FILE)
@click.option(
    "--from", "form", default="", metavar="FORMAT", help="Format of HISTORY. [default: as recognised]"
)
@click.option(
    "--cluster",
    type=_FILE,
    metavar="C",
    help="Cluster (TOML) that it happened on; not needed where the format describes nodes.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME|FILE",
    help="Policy to look at; may be repeated. [default: tuned, qssf-backfill, easy]",
)
@setting
@click.option(
    "--models",
    is_flag=False,
    flag_value="default",
    metavar="[FILE]",
    help="Model speed and power: energy, sharing, clocks; with the settings of a TOML file.",
)
@click.option(
    "--prediction",
    default="running-mean",
    show_default=True,
    metavar="KIND",
    help="Who predicts run times: running-mean, or hedge as in a broker, which takes minutes the first time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "html_path", type=_FILE, metavar="FILE", help="Write a page with plots.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes. [default: one a core]")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def whatif(
    ctx: click.Context,
    history: Path,
    form: str,
    cluster: Path | None,
    policies: tuple[str, ...],  # noqa: ARG001 - these two come together, from `said`
    changes: tuple[str, ...],  # noqa: ARG001
    models: str | None,
    prediction: str,
    as_json: bool,
    html_path: Path | None,
    workers: int | None,
    quiet: bool,
) -> int:
    """Say what other policies would have made of your history, if a replay is true to it.

    First the rule that the site went by is sought: the history is replayed under several rules, and each
    replay is compared with the recorded starts. The best has a grade; below C nothing is claimed (exit code
    2). Then policies replay the history, and are compared with that rule on its last fifth.

    \b
    Example:
      rlsched whatif sacct.txt --cluster c.toml --html whatif.html
      rlsched whatif HeliosData/data/Venus --policy tuned --policy easy --set reserve_after=1h
    """
    import os

    import msgspec

    from rlsched.errors import InputError
    from rlsched.settings import encode_time
    from rlsched.terminal.show import print_json
    from rlsched.workload.predict.kinds import chosen_kind
    from rlsched_agents.evaluate.run import distinct
    from rlsched_agents.evaluate.simulate import models_of
    from rlsched_agents.whatif.history import History
    from rlsched_agents.whatif.look import POLICIES, Asked, look

    if html_path is not None:
        import rlsched_agents.whatif.page as page  # before a long run: a missing extra is said at once
    from rlsched.decide.policies.policy import Policy

    chosen = distinct(one.policy for one in said(ctx)) or [Policy(name) for name in POLICIES]
    asked = Asked(chosen, models_of(models), chosen_kind(prediction), workers or len(os.sched_getaffinity(0)))
    with _progress(quiet) as tell:
        tell("reading the history", 0.0)
        found = look(History.read(history, cluster, form), asked, tell)
    if html_path is not None:
        page.write_page(found, html_path)
    if as_json:
        print_json(msgspec.to_builtins(found, enc_hook=encode_time))
    else:
        _print(found)
    if found.refused:
        raise InputError(f"{history}: {found.refused}")
    return 0


def _print(found: WhatIf) -> None:
    from rlsched.terminal.show import print_table
    from rlsched_agents.whatif import tables

    predicted = f"; run times predicted by {found.prediction}" if found.prediction else ""
    click.echo(
        f"{found.history}: {found.jobs:,} jobs ({found.form}, {found.skipped:,} rows skipped) on "
        f"{found.nodes:,} nodes, {found.gpus:,} GPUs ({found.cluster}); at most "
        f"{found.most_busy_gpus:,.0f} busy at once{predicted}\n"
    )
    made = [tables.fidelity(found)]
    if found.site is not None:
        one = tables.shown(found)
        made.append(tables.policies(found))
        if one is not None:
            made += [tables.gains(one, kind) for kind in ("size", "partition", "user")]
        made.append(tables.spare(found))
    for table in made:
        if table.rows:
            print_table(table.title, table.columns, table.rows, table.note)
    if not found.refused:
        click.echo(found.verdict)


@contextmanager
def _progress(quiet: bool) -> Iterator[Tell]:
    from rlsched.terminal.progress import Progress

    with Progress(shown=not quiet) as shown:
        bar = shown.begin("reading the history")
        yield lambda what, done: shown.update(bar, done, f"{done:.0%} of all", what)
