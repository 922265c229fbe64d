"""`rlsched trace nodes`: energy that putting idle nodes to sleep would have saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlsched.terminal.show import print_json, print_table

if TYPE_CHECKING:
    from rlsched.power_down.series import NodeDemand

_COUNT = click.IntRange(min=0)
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("file", metavar="DEMAND", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(min=1), help="Total number of nodes, for a table of attempts.")
@click.option(
    "--warm-up-days",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Days at the start that are not measured.",
)
@click.option(
    "--window-h", type=_POSITIVE, default=3.0, show_default=True, help="Span of the trailing maximum, hours."
)
@click.option("--buffer", type=_COUNT, default=25, show_default=True, help="Nodes awake above the maximum.")
@click.option(
    "--wake-buffer", type=_COUNT, default=40, show_default=True, help="Same as --buffer, after a wake-up."
)
@click.option(
    "--ramp",
    type=_COUNT,
    default=2,
    show_default=True,
    help="Most nodes put to sleep per review; 0: no limit.",
)
@click.option(
    "--falling-min",
    type=_COUNT,
    default=60,
    show_default=True,
    help="Put nodes to sleep only while demand is below its mean over this time, minutes.",
)
@click.option(
    "--headroom", type=_COUNT, default=0, show_default=True, help="Wake nodes when fewer than this are free."
)
@click.option(
    "--review-s", type=_POSITIVE, default=60.0, show_default=True, help="Time between reviews, seconds."
)
@click.option("--boot-s", type=click.FloatRange(min=0), help="Time to boot, seconds. [default: 450]")
@click.option(
    "--idle-w", type=click.FloatRange(min=0), help="Power of an idle node, W. [default: eight V100, 708]"
)
@click.option("--asleep-w", type=click.FloatRange(min=0), help="Power of a sleeping node, W. [default: 10]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(
    file: Path,
    nodes: int | None,
    warm_up_days: float,
    window_h: float,
    buffer: int,
    wake_buffer: int,
    ramp: int,
    falling_min: int,
    headroom: int,
    review_s: float,
    boot_s: float | None,
    idle_w: float | None,
    asleep_w: float | None,
    as_json: bool,
) -> None:
    """Estimate what putting idle nodes to sleep would have saved, on a log of node demand.

    DEMAND is CSV (also .gz) with the columns time (dates or seconds), busy and total, or a table of attempts
    (start_time, end_time, node) as `evaluate --jobs-out` writes it. Powers are assumptions: give your own.

    \b
    Example:
      rlsched trace nodes demand.csv --buffer 5 --wake-buffer 8 --headroom 2
      rlsched trace nodes out/fifo-backfill.segments.csv --nodes 40 --json
    """
    import msgspec

    from rlsched.models.node_power import PowerByState
    from rlsched.power_down.minutes import replay_states
    from rlsched.power_down.service import KeepRule, PowerDownService
    from rlsched.workload.predict.node_demand import SLOT_S, TrailingMaximum

    series = _read(file, nodes)
    since_s = float(series.time_s[0]) + 86400.0 * warm_up_days
    if since_s >= series.time_s[-1]:
        span_days = (series.time_s[-1] - series.time_s[0]) / 86400.0
        raise click.UsageError(
            f"{file} covers {span_days:.2f} days, no more than --warm-up-days {warm_up_days:g}: give less"
        )
    rule = KeepRule(
        buffer_nodes=buffer,
        wake_buffer_nodes=wake_buffer,
        ramp_nodes=ramp,
        falling_slots=round(falling_min * 60 / SLOT_S),
        headroom_nodes=headroom,
    )
    forecast = TrailingMaximum(max(round(window_h * 3600 / SLOT_S), 1))
    given = {"boot_s": boot_s, "idle_w": idle_w, "boot_w": idle_w, "asleep_w": asleep_w}
    known = {name: value for name, value in given.items() if value is not None}
    power = msgspec.structs.replace(PowerByState.from_gpus(), **known)
    outcome = replay_states(series, PowerDownService(rule, forecast), power, since_s, review_s)
    report: dict[str, Any] = {
        "demand": str(file),
        "nodes": int(series.total[-1]),
        **msgspec.to_builtins(outcome),
        "saved_kwh": outcome.always_on_kwh - outcome.energy_kwh,
        "rule": msgspec.to_builtins(rule),
        "forecast": forecast.name,
        "power": msgspec.to_builtins(power),
    }
    if as_json:
        print_json(report)
    else:
        _print(report)


def _read(file: Path, nodes: int | None) -> NodeDemand:
    """Read a log of demand or a table of attempts; its columns tell which."""
    from rlsched.power_down.series import NodeDemand, is_run

    if is_run(file):
        return NodeDemand.of_run(file, nodes)
    if nodes is not None:
        raise click.UsageError("--nodes goes with a table of attempts; a log of demand has its own total")
    return NodeDemand.read(file)


def _print(report: dict[str, Any]) -> None:
    days = report["days"]
    rows = [
        ("nodes asleep, mean", f"{report['nodes_asleep']:.1f} of {report['nodes']}"),
        ("node utilisation", f"{report['utilisation_frac']:.1%}"),
        ("wake-up events", f"{report['wake_up_events']} ({report['wake_up_events'] / days:.2f} a day)"),
        ("nodes booted", f"{report['nodes_booted']:,}"),
        ("ten-minute slots short", f"{report['slots_short']}"),
        ("nodes short, summed over these slots", f"{report['node_slots_short']:,}"),
        ("nodes short times minutes", f"{report['node_minutes_short']:,.0f}"),
        ("energy saved", f"{report['saved_kwh']:,.0f} of {report['always_on_kwh']:,.0f} kWh"),
    ]
    print_table(
        f"{report['demand']}: {days:.1f} days, {report['forecast']}",
        ("", "with sleeping nodes"),
        rows,
        "energy: the nodes themselves, without what jobs draw, at the powers given",
    )
