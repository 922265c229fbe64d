"""`rlsched board`: TensorBoard on training curves and decisions, or a summary of them in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlsched.cli.show import console

if TYPE_CHECKING:
    from rlsched.board.reader import RunEvents


@click.command()
@click.option("--logdir", metavar="DIR", help="Folder of event files, or where to put those of --records.")
@click.option("--records", metavar="PATH", help="A record file, or a folder of *.msgpack, to show as well.")
@click.option("--port", default=6006, show_default=True, help="Port to serve on; 0: any free one.")
@click.option("--host", default="localhost", show_default=True, help="Address to serve on.")
@click.option("--summary", metavar="DIR", help="Print the curves of this folder and do not serve.")
@click.option("--json", "as_json", is_flag=True, help="With --summary: JSON on standard output.")
def board(
    logdir: str | None, records: str | None, port: int, host: str, summary: str | None, as_json: bool
) -> None:
    """Show training curves and decisions in TensorBoard.

    \b
    Example:
      rlsched evaluate --trace T --cluster C --policy ppo --records runs/records
      rlsched board --records runs/records --logdir runs/decisions
      rlsched board --summary runs/decisions
    """
    from rlsched.errors import InputError

    if summary is not None:
        _print_summary(summary, as_json)
        return
    if logdir is None:
        raise InputError(
            "expected --logdir DIR (event files to show) or --summary DIR; see rlsched board --help"
        )
    if records is not None:
        from rlsched.board.convert import records_to_events

        for name, count in records_to_events(records, logdir).items():
            click.echo(f"{name}: {count} decisions -> {logdir}/{name}", err=True)
    from rlsched.board.serve import serve

    serve(logdir, host=host, port=port)


def _print_summary(logdir: str, as_json: bool) -> None:
    from rlsched.board.reader import read_runs

    runs = read_runs(logdir)
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
