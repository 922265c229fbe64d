"""Measures of a case in `studies/predict/results.py`, and its tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from rlsched_agents.evaluate.pairs import Ratio

GOAL_FRAC = 0.4
GOAL_FOR = ("philly", "helios_venus")


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """Queueing of `qssf-backfill` under one predictor.

    Attributes:
        queue_mean_s: Mean queueing delay, s.
        gap_frac: Share of the way from the running mean's delay to the delay with true durations.
        ratio: Delay / delay under the running mean, with its 95 % interval over blocks of days.
    """

    queue_mean_s: float
    gap_frac: float | None
    ratio: Ratio | None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one load; see `rlsched.workload.predict.quality` for `quality`."""

    workload: str
    real: bool
    load: float
    load_got: float
    nodes: int
    jobs: int
    seed: int
    stamp_cpu_s: float
    trace_jobs: int
    fits: int
    weights: dict[str, float]
    running_mean_queue_s: float
    true_queue_s: float
    worth: dict[str, Worth]
    quality: dict[str, dict[str, Any]]


def write_tables(results: list[CaseResult], out: Path, *, command: str) -> list[Path]:
    """Write OUT/prediction.md and OUT/prediction.json."""
    table, data = out / "prediction.md", out / "prediction.json"
    real = [one for one in results if one.real]
    synthetic = [one for one in results if not one.real]
    parts = [f"`{command}`", ""]
    if real:
        parts += [
            "Value of predictions",
            "",
            *worth_table(real),
            "",
            "How good",
            "",
            *quality_table(real),
            "",
        ]
        parts += ["P(longer): share predicted / true", "", *calibration_table(real), ""]
    if synthetic:
        parts += ["Users and names", "", *owners_table(synthetic), ""]
    table.write_text("\n".join(parts), encoding="utf-8")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return [table, data]


def worth_table(results: list[CaseResult]) -> list[str]:
    """Queueing, and the share of the gap of the hedge and of its parts by themselves."""
    rows = []
    for one in results:
        hedge = one.worth["hedge, mean"]
        met = ""
        if one.workload.partition(",")[0] in GOAL_FOR and hedge.gap_frac is not None:
            met = "met" if hedge.gap_frac >= GOAL_FRAC else "missed"
        elif hedge.gap_frac is not None:
            met = "met" if hedge.gap_frac >= 0 else "missed"
        parts = (f"{name}, mean" for name in ("nearest", "survival", "boosting"))
        rows.append(
            [one.workload, f"{one.load:g}", f"{one.nodes}", f"{one.jobs:,}",
             f"{one.running_mean_queue_s:,.0f}", f"{hedge.queue_mean_s:,.0f}", f"{one.true_queue_s:,.0f}",
             f"**{share(hedge.gap_frac)}**", interval(hedge.ratio),
             share(one.worth["hedge, median"].gap_frac), *(share(one.worth[part].gap_frac) for part in parts),
             met]
        )  # fmt: skip
    return markdown(
        ("trace", "load", "nodes", "jobs", "queue s: running mean", "hedge", "true", "of the gap",
         "ratio [95 %]", "its median", "nearest", "survival", "boosting", "goal"), rows,
    )  # fmt: skip


def quality_table(results: list[CaseResult]) -> list[str]:
    """Ranks, areas under the curve and calibration: running mean / hedge."""
    rows = []
    for one in results:
        mean, hedge = one.quality["running-mean"], one.quality["hedge"]

        def both(
            read: Callable[[dict[str, Any]], float | None],
            mean: dict[str, Any] = mean,
            hedge: dict[str, Any] = hedge,
        ) -> str:
            return f"{number(read(mean))} / {number(read(hedge))}"

        rows.append(
            [one.workload, f"{one.load:g}",
             both(lambda q: q["spearman_ln"]), both(lambda q: q["spearman_mean"]),
             both(lambda q: q["large_spearman_ln"]),
             *(both(lambda q, k=k: q["longer"][k]["auc"]) for k in range(4)),  # type: ignore[misc]
             both(lambda q: q["ks"]), both(lambda q: q["covered_frac"])]
        )  # fmt: skip
    return markdown(
        ("trace", "load", "Spearman of E ln", "of the mean", "of E ln, gangs >= 8",
         "AUC 10 min", "1 h", "4 h", "1 day", "KS", "in the 80 % interval"), rows,
    )  # fmt: skip


def calibration_table(results: list[CaseResult]) -> list[str]:
    """Return the lines of a table: mean P(longer) of the hedge, and the share of jobs that ran longer."""
    rows = [
        [
            one.workload,
            f"{one.load:g}",
            *(
                f"{row['predicted_frac']:.3f} / {row['true_frac']:.3f}"
                for row in one.quality["hedge"]["longer"]
            ),
            *(f"{weight:.2f}" for weight in one.weights.values()),
            f"{one.fits}",
            f"{one.stamp_cpu_s:.0f}",
        ]
        for one in results
    ]
    return markdown(
        ("trace", "load", "10 min", "1 h", "4 h", "1 day",
         *(f"weight: {name}" for name in results[0].weights), "fits", "CPU s"), rows,
    )  # fmt: skip


def owners_table(results: list[CaseResult]) -> list[str]:
    """Means over the seeds of every synthetic kind."""
    kinds = list(dict.fromkeys((one.workload, one.load) for one in results))
    rows = []
    for workload, load in kinds:
        mine = [one for one in results if (one.workload, one.load) == (workload, load)]
        none = sum(one.running_mean_queue_s for one in mine)
        full = sum(one.true_queue_s for one in mine)
        got = sum(one.worth["hedge, mean"].queue_mean_s for one in mine)
        every = ", ".join(share(one.worth["hedge, mean"].gap_frac) for one in mine)
        rank = sum(one.quality["hedge"]["spearman_ln"] for one in mine) / len(mine)
        long = sum(one.quality["hedge"]["longer"][2]["auc"] for one in mine) / len(mine)
        rows.append(
            [workload, f"{load:g}", f"{rank:.2f}", f"{long:.2f}", f"{none / len(mine):,.0f}",
             f"{got / len(mine):,.0f}", f"{full / len(mine):,.0f}",
             f"**{share((none - got) / (none - full) if none > full else None)}**", every]
        )  # fmt: skip
    return markdown(
        ("trace", "load", "Spearman of E ln", "AUC 4 h", "queue s: running mean", "hedge", "true",
         "of the gap", "by seed"), rows,
    )  # fmt: skip


def markdown(head: Iterable[str], rows: list[list[str]]) -> list[str]:
    """A table, line by line."""
    columns = list(head)
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def share(value: float | None) -> str:
    """A share of the gap."""
    return "-" if value is None else f"{100 * value:.0f} %"


def number(value: float | None) -> str:
    """Two decimals, - if unknown."""
    return "-" if value is None else f"{value:.2f}"


def interval(ratio: Ratio | None) -> str:
    """A ratio and its interval, if there are enough blocks for one."""
    return "-" if ratio is None else f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
