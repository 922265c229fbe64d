"""`rlsched whatif`: replays a site's history under other policies, if a replay can reproduce the history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import HTML, JSON, MODELS, PATH, QUIET, WORKERS, shown
from rlsched.cli.shared.policies import PolicyCommand, given_policies, policies_option, setting

if TYPE_CHECKING:
    from rlsched_agents.whatif.results import WhatIf
    from rlsched_agents.whatif.site import Tell


@click.command(cls=PolicyCommand)
@click.argument("history", metavar="HISTORY", type=PATH)
@click.option(
    "--from",
    "form",
    default="",
    metavar="FORMAT",
    help="Format of HISTORY, as in `rlsched trace convert --from`. [default: detected]",
)
@click.option(
    "--cluster",
    type=PATH,
    metavar="C",
    help="Cluster file (TOML) of the history; not required if the format of HISTORY describes the nodes.",
)
@policies_option("Policy to compare with the history; may be repeated. [default: tuned, qssf-backfill, easy]")
@setting
@MODELS
@shown(
    "--prediction",
    default="running-mean",
    metavar="KIND",
    help="Predictor of run times: `running-mean`, or `hedge`, which a broker uses. The first command with "
    "`hedge` takes minutes.",
)
@JSON
@HTML
@WORKERS
@QUIET
@click.pass_context
def whatif(
    ctx: click.Context,
    history: Path,
    form: str,
    cluster: Path | None,
    policies: tuple[str, ...],  # noqa: ARG001 - `given_policies` passes these two together
    changes: tuple[str, ...],  # noqa: ARG001
    models: str | None,
    prediction: str,
    as_json: bool,
    html_path: Path | None,
    workers: int | None,
    quiet: bool,
) -> int:
    """Report how other policies would have scheduled the recorded jobs of your cluster.

    HISTORY is the output of sacct or another format of `rlsched trace convert`. The first step finds the rule
    by which your scheduler started jobs: it replays the history under several rules, and compares each replay
    with the recorded starts. The accuracy of the best rule gets a grade, A to D; below C no results are
    reported, and the exit code is 2. The second step replays the history under each policy, and compares the
    policy with the best rule on the last fifth of the history.

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
    from rlsched_agents.whatif.job_history import JobHistory
    from rlsched_agents.whatif.run_whatif import POLICIES, WhatifQuestion, run_whatif

    if html_path is not None:
        import rlsched_agents.whatif.page as page  # reports a missing extra before the long run
    from rlsched.decide.policies.policy import Policy

    chosen = distinct(one.policy for one in given_policies(ctx)) or [Policy(name) for name in POLICIES]
    asked = WhatifQuestion(
        chosen, models_of(models), chosen_kind(prediction), workers or len(os.sched_getaffinity(0))
    )
    with _progress(quiet) as tell:
        tell("reading the history", 0.0)
        found = run_whatif(JobHistory.read(history, cluster, form), asked, tell)
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
