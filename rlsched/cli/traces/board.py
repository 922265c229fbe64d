"""`rlsched board`: shows training curves and decisions in TensorBoard, or as a summary in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import json_option, shown
from rlsched.terminal.show import console

if TYPE_CHECKING:
    from rlsched.board.reader import RunEvents


@click.command()
@click.argument("folder", required=False, metavar="DIR")
@shown(
    "--port", type=click.IntRange(0, 65_535), default=6006, help="Port to serve on; 0 selects a free port."
)
@shown("--host", default="localhost", help="Address to serve on.")
@click.option(
    "--summary", is_flag=True, help="Print a summary of the curves instead of starting TensorBoard."
)
@json_option("With --summary: print JSON instead of tables.")
def board(folder: str | None, port: int, host: str, summary: bool, as_json: bool) -> None:
    """Show decisions and training curves in TensorBoard.

    DIR is a folder written by `rlsched train --logdir`, `rlsched evaluate --logdir` or `rlsched evaluate
    --records`, or the directory of a broker.  [default: directory of this machine's broker]

    \b
    Example:
      rlsched evaluate --trace T --cluster C --policy tuned --records runs/records
      rlsched board runs/records
      rlsched board --summary runs/log
    """
    if folder is None:
        from rlsched.cli.users.explain import own_broker

        folder = str(own_broker())
    if summary:
        _print_summary(folder, as_json)
        return
    from rlsched.board.start_tensorboard import serve

    serve(folder, host=host, port=port)


def _print_summary(logdir: str, as_json: bool) -> None:
    from rlsched.board.reader import read_runs

    runs = read_runs(logdir)
    for run in runs.values():
        for line in run.damaged:
            click.echo(line, err=True)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({name: _last_values(run) for name, run in runs.items()}))
        return
    from rich.table import Table

    out = console()
    for name, run in runs.items():
        table = Table(
            "curve", "points", "last step", "first", "last", title=f"run {name}", title_justify="left"
        )
        for tag, points in sorted(run.scalars.items()):
            step, last = points[-1]
            table.add_row(tag, str(len(points)), str(step), f"{points[0][1]:.6g}", f"{last:.6g}")
        out.print(table)
        for tag, texts in sorted(run.texts.items()):
            out.print(f"{tag} (step {texts[-1][0]})", style="bold")
            out.print(texts[-1][1], markup=False)


def _last_values(run: RunEvents) -> dict[str, dict[str, float]]:
    return {
        tag: {"points": len(points), "last_step": points[-1][0], "last": points[-1][1]}
        for tag, points in sorted(run.scalars.items())
    }
