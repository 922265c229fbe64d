"""Prints the text output of `rlsched evaluate`: verdict, tables and legend, for terminals of any width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlsched.terminal.show import folded, in_words
from rlsched_agents.evaluate.legend import LEGEND
from rlsched_agents.evaluate.metrics import GroupMetrics
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Ratio

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlsched_agents.evaluate.findings import Findings

Rows = Mapping[str, tuple[str, ...]]

_SPARE = (10, 5, 8, 6, 1, 2)
"""Indices of the columns that are omitted from the headline table on a narrow terminal, in this order."""
_SPARE_TAILS = (0, 4)
_SPARE_ENERGY = (3, 5, 4)
_WIDEST = 1_000
TABLE_WIDTH = 130
"""Width of tables if the output is not a terminal, characters."""
RECORDED = "recorded"


def print_report(report: Findings, console: Console) -> None:
    """Print the verdict, the tables, and the legend of their columns."""
    _Tables(report, console).print()


class _Tables:
    """The tables of one report.

    Args:
        report: The report.
        console: Console to print to.
    """

    def __init__(self, report: Findings, console: Console) -> None:
        self._report, self._console = report, console
        self._explained: dict[str, None] = {}

    def print(self) -> None:
        """Print all tables of the report."""
        report, say = self._report, self._say
        load = "unknown" if report.load_frac is None else f"{report.load_frac:.2f}"
        say(
            f"{report.trace} on {report.nodes} nodes, {_gpus(report)} ({report.cluster}), load {load}, "
            f"window {_window(report)}, seeds {', '.join(map(str, report.seeds))}"
        )
        say(f"\n{report.verdict}", style="bold")
        for caution in report.cautions:
            say(f"Note: {caution}")
        say()
        self._headline()
        if report.predicted_by:
            say(f"{report.predicted_by}\n")
        self._tails()
        self._attempts()
        self._energy()
        self._power_limit()
        self._power_down()
        self._ratios()
        self._scores()
        self._groups("mean queueing delay", "GPUs", "by_gpus", "queue_mean_s")
        self._groups("longest queueing delay", "GPUs", "by_gpus", "queue_max_s")
        if len(next(iter(report.policies.values())).by_vc) > 1:
            self._groups("mean queueing delay", "VC", "by_vc", "queue_mean_s")
        self._decisions()
        say("Columns of the tables:")
        for head in self._explained:
            say(folded(f"  {head}: {LEGEND[head]}", self._console.width, 4))

    def _say(self, text: str = "", style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False)

    def _headline(self) -> None:
        rows: dict[str, tuple[str, ...]] = {
            name: (
                f"{one.jobs:,}",
                f"{one.rejected + one.unfinished:,}",
                _time(one.floor_mean_s),
                _time(one.delay_mean_s),
                _time(one.jct_mean_s),
                _time(one.jct_p50_s),
                _time(one.jct_p99_s),
                _time(one.queue_mean_s),
                _time(one.queue_p50_s),
                _time(one.queue_p99_s),
                _time(one.queue_p999_s),
                _percent(one.gpu_utilisation_frac),
            )
            for name, one in self._report.policies.items()
        }
        known = self._report.recorded
        if known is not None and RECORDED not in rows:
            jct = (_time(known.jct_mean_s), _time(known.jct_p50_s), _time(known.jct_p99_s))
            queue = (known.queue_mean_s, known.queue_p50_s, known.queue_p99_s, known.queue_p999_s)
            rows[RECORDED] = (f"{known.jobs:,}", "", "", "", *jct, *map(_time, queue), "")
        heads = (
            *("jobs", "not run", "floor", "delay", "JCT", "JCT p50", "JCT p99"),
            *("queue", "queue p50", "queue p99", "queue p99.9", "used"),
        )
        self._table("all jobs", heads, rows, spare=_SPARE)

    def _tails(self) -> None:
        self._table(
            "tails; bounded slowdown; free GPUs unusable to a job",
            ("JCT p90", "queue p90", "longest", "slowdown", "slowdown p99", "unusable"),
            {
                name: (
                    _time(one.jct_p90_s),
                    _time(one.queue_p90_s),
                    _time(one.queue_max_s),
                    _slowdown(one.bounded_slowdown_mean),
                    _slowdown(one.bounded_slowdown_p99),
                    _percent(one.fragmentation_frac),
                )
                for name, one in self._report.policies.items()
            },
            spare=_SPARE_TAILS,
        )

    def _attempts(self) -> None:
        """Print preemptions, lost work and failures, if there are any under any policy."""
        rows: dict[str, tuple[str, ...]] = {
            name: (
                f"{one.preemptions:,}",
                f"{one.lost_gpu_s / 3600:,.0f}",
                f"{one.by_end.get('timeout', 0):,}",
                f"{one.by_end.get('failed', 0):,}",
            )
            for name, one in self._report.policies.items()
        }
        if any(cell != "0" for cells in rows.values() for cell in cells):
            heads = ("preemptions", "lost GPU-h", "timed out", "failed")
            self._table("interrupted work, and jobs that did not finish", heads, rows)
        if any(one.preemptions for one in self._report.policies.values()):
            self._say("Queueing delay ends at the first start: compare policies that preempt by JCT.\n")

    def _energy(self) -> None:
        """Print energy, GPU use and costs, and which fraction of the catalogue's figures is measured."""
        report = self._report
        if report.models is None:
            return
        self._say(f"Models: {report.models.in_words}.\n")
        if report.profiled is not None:
            jobs = next(iter(report.policies.values())).jobs
            self._say(
                f"Profiles (--profiles): {report.profiled:,} of {jobs:,} jobs ran as the workload nearest to "
                "their learnt GPU time.\n"
            )
        self._table(
            "energy of the measured jobs, and of the whole cluster over the whole replay, kWh",
            ("energy, jobs", "a job", "cluster", "idle", "peak, kW", "GPUs at work", "shared", "SM clock"),
            {
                name: (
                    _kwh(one.energy_kwh),
                    _kwh(one.energy_per_job_kwh),
                    _kwh(one.cluster_energy_kwh),
                    _kwh(one.idle_energy_kwh),
                    _kwh(one.peak_kw),
                    _percent(one.gpu_used_frac),
                    _percent(one.shared_frac),
                    _percent(one.sm_clock_mean_frac),
                )
                for name, one in report.policies.items()
            },
            spare=_SPARE_ENERGY,
        )
        self._bills()
        shares = [one.measured_cells_frac for one in report.policies.values()]
        known = [share for share in shares if share is not None]
        if known:
            of = _percent(min(known)) + ("" if max(known) == min(known) else f" to {_percent(max(known))}")
            self._say(
                f"Measured or fitted: {of} of the catalogue's figures that these results use; the rest is "
                "assumed, see docs/explanation/catalogue.md.\n"
            )

    def _bills(self) -> None:
        """Print the cost and the carbon of the electricity, if the cluster has a price or an intensity."""
        of = "of the electricity: of the measured jobs, and of the whole cluster over the whole replay"
        units = {"cost": self._report.currency, "carbon_kg": "kg CO2e"}
        for field, unit in units.items():
            bills = {name: getattr(one, field) for name, one in self._report.policies.items()}
            if any(bill is not None for bill in bills.values()):
                rows = {
                    name: tuple(map(_kwh, (bill.jobs, bill.per_job, bill.cluster, bill.idle)))
                    for name, bill in bills.items()
                    if bill is not None
                }
                title = f"{field.removesuffix('_kg')} {of}, {unit}"
                self._table(title, ("by jobs", "per job", "in all", "idle part"), rows)

    def _power_limit(self) -> None:
        """Print how well each policy kept the power limit in the whole replay."""
        rows = {
            name: (f"{kept.capped_h:,.1f}", f"{kept.exceeded_h:,.1f}", _kwh(kept.exceeded_kwh))
            for name, one in self._report.policies.items()
            if (kept := one.power_limit) is not None
        }
        if rows:
            heads = ("clocks lowered, h", "exceeded, h", "exceeded, kWh")
            self._table("power limit, over the whole replay", heads, rows)

    def _power_down(self) -> None:
        """Print the results of power-down in the whole replay."""
        policies = self._report.policies.items()
        slept = {name: one.power_down for name, one in policies if one.power_down is not None}
        if self._report.models is None or not slept:
            return
        self._table(
            "nodes that sleep, over the whole replay; waits for a boot count as queueing",
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

    def _ratios(self) -> None:
        report = self._report
        if not report.paired:
            return
        energy: tuple[str, ...] = ("energy",) if report.models else ()
        priced = any(one.cost_ratio is not None for one in report.paired.values())
        energy += ("cost",) if priced else ()
        weighed = any(one.carbon_ratio is not None for one in report.paired.values())
        energy += ("carbon",) if weighed else ()
        slack = (
            ("no slack", "late") if any(one.late_frac is not None for one in report.paired.values()) else ()
        )
        self._table(
            f"ratios to {report.baseline} on the same jobs, {_intervals(report)}; below 1 better",
            ("mean queue", "mean JCT", *energy, *slack, "waits less", "longer"),
            {
                name: (
                    _ratio(one.queue_mean_ratio),
                    _ratio(one.jct_mean_ratio),
                    *((_ratio(one.energy_ratio),) if report.models else ()),
                    *((_ratio(one.cost_ratio),) if priced else ()),
                    *((_ratio(one.carbon_ratio),) if weighed else ()),
                    *((_ratio(one.urgent_jct_ratio), _percent(one.late_frac or 0.0)) if slack else ()),
                    _percent(one.wins_frac),
                    _percent(one.losses_frac),
                )
                for name, one in report.paired.items()
            },
        )

    def _scores(self) -> None:
        """Print each policy's cost, as the objective defines it, and the ratios of the objective's terms."""
        scores = self._report.scores
        if not scores:
            return
        first = next(iter(scores.values()))
        heads = [
            f"{name}, max {first.bounds[name]:g}" if name in first.bounds else name for name in first.terms
        ]
        rows = {
            name: (str(one.cost), *map(str, one.terms.values()), ", ".join(one.exceeded) or "-")
            for name, one in scores.items()
        }
        self._print(
            f"cost by the objective, relative to {self._report.baseline}; below 1 better",
            ("cost", *heads, "exceeded"),
            rows,
            first="policy",
        )

    def _groups(self, title: str, what: str, by: str, field: str) -> None:
        groups: dict[str, dict[str, GroupMetrics]] = {
            name: getattr(one, by) for name, one in self._report.policies.items()
        }
        some = next(iter(groups.values()))
        rows = {
            key: (f"{some[key].jobs:,}", *(_time(getattr(one[key], field)) for one in groups.values()))
            for key in some
        }
        self._print(f"{title} by {what} of the job", ("jobs", *groups), rows, first=what)

    def _decisions(self) -> None:
        self._table(
            "decisions",
            ("by", "us, p50", "us, p99", "wall (s)"),
            {
                name: (
                    ", ".join(f"{source} {count:,}" for source, count in one.by_source.items() if count),
                    _micro(one.decision_p50_us),
                    _micro(one.decision_p99_us),
                    f"{one.wall_s:.1f}",
                )
                for name, one in self._report.policies.items()
            },
        )

    def _table(self, title: str, heads: tuple[str, ...], rows: Rows, *, spare: tuple[int, ...] = ()) -> None:
        """Print a table with one row per policy, and add its columns to the legend."""
        left_out = self._print(title, heads, rows, first="policy", spare=spare)
        self._explained |= {head: None for at, head in enumerate(heads) if at not in left_out}

    def _print(
        self, title: str, heads: tuple[str, ...], rows: Rows, *, first: str, spare: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """Print a table. If it is too wide, omit columns in the order of `spare`, but never truncate numbers.

        Returns the omitted columns.
        """
        console = self._console
        for count in range(len(spare) + 1):
            table = _made(title, heads, rows, first, left_out=spare[:count])
            table.width = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
            if table.width <= console.width:
                break
        if count:
            table.title = f"{title}; a wider terminal shows more, --json all"
        console.print(table, crop=False)
        return spare[:count]


def _made(title: str, heads: tuple[str, ...], rows: Rows, first: str, *, left_out: tuple[int, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(first, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    kept = [column for column in range(len(heads)) if column not in left_out]
    for column in kept:
        table.add_column(heads[column], justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(cells[column] for column in kept))
    return table


def _gpus(report: Findings) -> str:
    """Return the number of GPUs that the scheduler can allocate, and of MIG slices among them, as text."""
    if not report.mig_slices:
        return f"{report.gpus} GPUs"
    cut = report.devices - (report.gpus - report.mig_slices)
    return f"{report.gpus} GPUs of which {report.mig_slices} are MIG slices of {cut}"


def _window(report: Findings) -> str:
    if report.since_s is None and report.until_s is None:
        return "the whole trace"
    since = "start" if report.since_s is None else f"{report.since_s:.0f}"
    return f"{since} to {'end' if report.until_s is None else f'{report.until_s:.0f}'} s"


def _time(value: float | None) -> str:
    return "" if value is None else in_words(value)


def _micro(value: float | None) -> str:
    return "compiled" if value is None else f"{value:,.0f}"


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


def _intervals(report: Findings) -> str:
    """Return a note on the confidence intervals: their level, or that there are too few days for them."""
    days = min(one.blocks or 0 for one in report.paired.values())
    if days < MIN_BLOCKS:
        return f"no intervals: {days} days of submissions, {MIN_BLOCKS} needed"
    return "95 % intervals"
