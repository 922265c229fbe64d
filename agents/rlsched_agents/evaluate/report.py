"""The report of an evaluation: the JSON file of the contract, and tables for people."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlsched.errors import InputError
from rlsched.settings import encode_time
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Comparison, Ratio
from rlsched_envs.modelling import Models

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SPARE = (10, 5, 8, 6, 1, 2)
"""Columns of the headline table that a narrow terminal does without: the first goes first."""
_SPARE_TAILS = (0, 4)
_SPARE_ENERGY = (3, 4)
_WIDEST = 1_000


class PolicyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is.

    Attributes:
        toml: Its settings.
        digest: Of its settings: equal policies, equal digests.
    """

    toml: str
    digest: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `rlsched evaluate --json` writes. None: nothing computes it, or nothing to compute it from.

    Attributes:
        trace: Name of the trace.
        cluster: Name of the cluster.
        nodes: Its nodes, after --nodes or --load.
        gpus: Its GPUs that jobs can be given; a MIG slice is one.
        load_frac: Offered load of the measured jobs on it.
        seeds: Seeds of the policies' draws; numbers are means over them.
        policies: By name, in the order asked for.
        settings: What each of them is, by name.
        since_s: First second of the window, None: the trace's start.
        until_s: End of the window, None: the trace's end.
        baseline: The policy that `paired` compares with.
        paired: Every other policy against the baseline, on the same jobs.
        rejected_reasons: Measured jobs that can never run, by reason.
        models: The models that every policy ran under; None: jobs ran as the trace says.
        mig_slices: MIG slices among the GPUs.
        devices: GPUs in its nodes, whole or cut.
        prediction: Who predicted the run times that the trace does not: `hedge` or `running-mean`.
    """

    trace: str
    cluster: str
    nodes: int
    gpus: int
    load_frac: float | None
    seeds: list[int]
    policies: dict[str, Metrics]
    settings: dict[str, PolicyUsed]
    since_s: float | None = None
    until_s: float | None = None
    baseline: str
    paired: dict[str, Comparison]
    rejected_reasons: dict[str, int]
    models: Models | None = None
    mig_slices: int = 0
    devices: int = 0
    prediction: str = ""

    def __str__(self) -> str:
        """Tables for people."""
        from rich.console import Console

        text = io.StringIO()
        print_report(self, Console(file=text, width=120, highlight=False))
        return text.getvalue()


def write_json(report: Report, path: str | Path) -> None:
    """Write the report.

    Raises:
        InputError: the file cannot be written.
    """
    body = msgspec.json.format(msgspec.json.encode(report, enc_hook=encode_time), indent=2)
    try:
        Path(path).write_bytes(body + b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot write the report here: {error.strerror}") from error


# ---- tables, in a terminal of any width -----------------------------------------------------------


def print_report(report: Report, console: Console) -> None:
    """The headline numbers of each policy, their tails, how they compare, and waiting by job size and VC."""
    load = "unknown" if report.load_frac is None else f"{report.load_frac:.2f}"
    console.print(
        f"[bold]{report.trace}[/] on {report.nodes} nodes, {_gpus(report)} ({report.cluster}), "
        f"load {load}, window {_window(report)}, seeds {', '.join(map(str, report.seeds))}"
    )
    _print_table(
        console,
        "seconds",
        (
            *("jobs", "not run", "floor", "delay", "JCT mean", "p50", "p99"),
            *("queue mean", "p50", "p99", "p99.9", "used"),
        ),
        {
            name: (
                f"{one.jobs:,}",
                f"{one.rejected + one.unfinished:,}",
                _seconds(one.floor_mean_s),
                _seconds(one.delay_mean_s),
                _seconds(one.jct_mean_s),
                _seconds(one.jct_p50_s),
                _seconds(one.jct_p99_s),
                _seconds(one.queue_mean_s),
                _seconds(one.queue_p50_s),
                _seconds(one.queue_p99_s),
                _seconds(one.queue_p999_s),
                _percent(one.gpu_utilisation_frac),
            )
            for name, one in report.policies.items()
        },
        spare=_SPARE,
    )
    console.print("Floor: mean run time alone at full speed. Delay: mean JCT less that.\n")
    _print_table(
        console,
        "tails, seconds; bounded slowdown; free GPUs unusable to a job",
        ("JCT p90", "queue p90", "longest", "slowdown", "p99", "unusable"),
        {
            name: (
                _seconds(one.jct_p90_s),
                _seconds(one.queue_p90_s),
                _seconds(one.queue_max_s),
                _slowdown(one.bounded_slowdown_mean),
                _slowdown(one.bounded_slowdown_p99),
                _percent(one.fragmentation_frac),
            )
            for name, one in report.policies.items()
        },
        spare=_SPARE_TAILS,
    )
    _print_attempts(report, console)
    _print_energy(report, console)
    _print_power_down(report, console)
    if report.paired:
        _print_table(
            console,
            f"ratios to {report.baseline} on the same jobs, {_intervals(report)}; below 1 better",
            ("mean queue", "mean JCT", *(("energy",) if report.models else ()), "waits less", "longer"),
            {
                name: (
                    _ratio(one.queue_mean_ratio),
                    _ratio(one.jct_mean_ratio),
                    *((_ratio(one.energy_ratio),) if report.models else ()),
                    _percent(one.wins_frac),
                    _percent(one.losses_frac),
                )
                for name, one in report.paired.items()
            },
        )
    _print_groups(report, "mean queueing delay", "GPUs", "by_gpus", "queue_mean_s", console)
    _print_groups(report, "longest queueing delay", "GPUs", "by_gpus", "queue_max_s", console)
    if len(next(iter(report.policies.values())).by_vc) > 1:
        _print_groups(report, "mean queueing delay", "VC", "by_vc", "queue_mean_s", console)
    _print_table(
        console,
        "decisions",
        ("by", "us, p50", "us, p99", "wall (s)"),
        {
            name: (
                ", ".join(f"{source} {count:,}" for source, count in one.by_source.items() if count),
                _seconds(one.decision_p50_us) or "compiled",
                _seconds(one.decision_p99_us) or "compiled",
                f"{one.wall_s:.1f}",
            )
            for name, one in report.policies.items()
        },
    )


def _print_attempts(report: Report, console: Console) -> None:
    """What happened to jobs besides running to their end, if anything did under any policy."""
    rows: dict[str, tuple[str, ...]] = {
        name: (
            f"{one.preemptions:,}",
            f"{one.lost_gpu_s / 3600:,.0f}",
            f"{one.by_end.get('timeout', 0):,}",
            f"{one.by_end.get('failed', 0):,}",
        )
        for name, one in report.policies.items()
    }
    if any(cell != "0" for cells in rows.values() for cell in cells):
        _print_table(
            console,
            "interrupted work, and jobs that did not finish",
            ("preemptions", "lost GPU-h", "timed out", "failed"),
            rows,
        )
    if any(one.preemptions for one in report.policies.values()):
        console.print("Queueing delay ends at the first start: compare policies that preempt by JCT.\n")


def _print_energy(report: Report, console: Console) -> None:
    """What the models say of each policy, and what they rest on."""
    if report.models is None:
        return
    console.print(f"Models: {report.models.in_words}.\n")
    _print_table(
        console,
        "energy of the measured jobs, and of the whole cluster over the whole replay, kWh",
        ("jobs", "a job", "cluster", "idle", "GPUs at work", "shared", "SM clock"),
        {
            name: (
                _kwh(one.energy_kwh),
                _kwh(one.energy_per_job_kwh),
                _kwh(one.cluster_energy_kwh),
                _kwh(one.idle_energy_kwh),
                _percent(one.gpu_used_frac),
                _percent(one.shared_frac),
                _percent(one.sm_clock_mean_frac),
            )
            for name, one in report.policies.items()
        },
        spare=_SPARE_ENERGY,
    )
    shares = [one.measured_cells_frac for one in report.policies.values()]
    known = [share for share in shares if share is not None]
    if known:
        of = _percent(min(known)) + ("" if max(known) == min(known) else f" to {_percent(max(known))}")
        console.print(
            f"Measured or fitted: {of} of the catalogue's figures that these results use; the rest is "
            "assumed, see docs/explanation/catalogue.md.\n"
        )


def _print_power_down(report: Report, console: Console) -> None:
    """What nodes did that sleep, over the whole replay."""
    slept = {name: one.power_down for name, one in report.policies.items() if one.power_down is not None}
    if report.models is None or not slept:
        return
    _print_table(
        console,
        "nodes that sleep, over the whole replay; waits for them are queueing",
        ("wake-ups", "a day", "nodes booted", "node-hours asleep", "saved, kWh"),
        {
            name: (
                f"{one.wake_up_events:,}",
                f"{one.wake_ups_a_day:.2f}",
                f"{one.nodes_booted:,}",
                f"{one.asleep_node_h:,.0f}",
                _kwh(one.saved_kwh),
            )
            for name, one in slept.items()
        },
    )


def _print_groups(report: Report, title: str, what: str, by: str, field: str, console: Console) -> None:
    groups: dict[str, dict[str, GroupMetrics]] = {
        name: getattr(one, by) for name, one in report.policies.items()
    }
    some = next(iter(groups.values()))
    _print_table(
        console,
        f"{title} by {what} of the job, seconds",
        ("jobs", *groups),
        {
            key: (f"{some[key].jobs:,}", *(_seconds(getattr(one[key], field)) for one in groups.values()))
            for key in some
        },
        first=what,
    )


def _gpus(report: Report) -> str:
    """GPUs that jobs can be given, and what they are where some are MIG slices."""
    if not report.mig_slices:
        return f"{report.gpus} GPUs"
    cut = report.devices - (report.gpus - report.mig_slices)
    return f"{report.gpus} GPUs of which {report.mig_slices} are MIG slices of {cut}"


def _print_table(
    console: Console,
    title: str,
    headers: tuple[str, ...],
    rows: dict[str, tuple[str, ...]],
    *,
    first: str = "policy",
    spare: tuple[int, ...] = (),
) -> None:
    """Print a table and cut no number: where it is too wide, columns of `spare` go, then lines wrap."""
    for count in range(len(spare) + 1):
        table = _table(title, headers, rows, first, left_out=spare[:count])
        table.width = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        if table.width <= console.width:
            break
    if count:
        table.title = f"{title}; a wider terminal shows more, --json all"
    console.print(table, crop=False)


def _table(
    title: str,
    headers: tuple[str, ...],
    rows: dict[str, tuple[str, ...]],
    first: str,
    *,
    left_out: tuple[int, ...],
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(first, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    kept = [column for column in range(len(headers)) if column not in left_out]
    for column in kept:
        table.add_column(headers[column], justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(cells[column] for column in kept))
    return table


def _window(report: Report) -> str:
    if report.since_s is None and report.until_s is None:
        return "the whole trace"
    since = "start" if report.since_s is None else f"{report.since_s:.0f}"
    return f"{since} to {'end' if report.until_s is None else f'{report.until_s:.0f}'} s"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _kwh(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _slowdown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _ratio(value: Ratio | None) -> str:
    return "" if value is None else str(value)


def _intervals(report: Report) -> str:
    """What the title says of the intervals; every policy is compared on about the same jobs."""
    days = min(one.blocks or 0 for one in report.paired.values())
    if days < MIN_BLOCKS:
        return f"no intervals: {days} days of submissions, {MIN_BLOCKS} needed"
    return "95 % intervals"
