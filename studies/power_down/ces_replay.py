"""How many nodes may sleep? Rules and forecasts on the Philly node demand, 1 to 14 December 2017, 420 nodes.

    RLSCHED_DATA=../shared .venv/bin/python -m studies.power_down.ces_replay [--json FILE] [--markdown]

Settings are chosen only on 11 to 24 October and on November: the fewest idle nodes at a given number of
wake-ups a day, buffers charged in full. They are then replayed once on the test days; the best settings on
the test days themselves are printed separately, as hindsight. Forecasts are refitted every four days on
all earlier data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track

from rlsched.models.node_power import PowerByState
from rlsched.power_down.helios import HeliosRule
from rlsched.power_down.minutes import replay_states
from rlsched.power_down.replay import SlotOutcome, replay_slots, summarise_slots
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.terminal.show import finite, print_table
from rlsched.workload.predict.node_demand import (
    DAY_SLOTS,
    SLOT_S,
    Boosted,
    DemandForecast,
    Floats,
    Persistence,
    RecentRises,
    TrailingMaximum,
    future_ends,
    future_peaks,
)

CHOSEN_ON = (("2017-10-11", "2017-10-25"), ("2017-11-01", "2017-12-01"))
"""Before the test days, except 25 October 14:00 to the end of the 26th, where the log has gaps and zeros."""
TEST = ("2017-12-01", "2017-12-15")
BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Wake-up events a day."""
PUBLISHED = {"utilisation_frac": 0.904, "wake_ups_a_day": 0.5, "slots_short": 7, "nodes_asleep": 100.1}
RULES = [
    KeepRule(buffer_nodes=buffer, wake_buffer_nodes=wake, ramp_nodes=ramp, falling_slots=falling)
    for buffer, wake, ramp, falling in itertools.product(
        range(0, 45, 5), range(10, 70, 10), (0, 1, 2, 4), (0, 2, 6, 12)
    )
]
AHEAD = {3: "30 min", 6: "1 h", 18: "3 h", 36: "6 h"}


def families(first_slot: int) -> dict[str, list[DemandForecast]]:
    """Forecasts of the highest demand ahead, by family."""
    return {
        "persistence": [Persistence()],
        "trailing maximum": [TrailingMaximum(window) for window in (6, 12, 18, 24, 36, 72, 144)],
        "recent rises": [
            RecentRises(horizon, days * DAY_SLOTS, quantile)
            for horizon, days, quantile in itertools.product((6, 18), (7, 14), (0.9, 0.95))
        ],
        "boosting": [Boosted(18, quantile, first_slot=first_slot) for quantile in (0.5, 0.8, 0.9, 0.95)],
    }


class Replays:
    """The series by slots, and the questions about it."""

    def __init__(self, series: NodeDemand) -> None:
        self.series = series
        self.demand, _, self.first_slot = series.slots()
        self.total = np.full(len(self.demand), 420.0)
        self.test = self.span(*TEST)

    def span(self, since: str, until: str) -> tuple[int, int]:
        first, last = ((seconds(day) - self.series.time_s[0]) / SLOT_S for day in (since, until))
        return round(first), round(last)

    def before(self, peaks: Floats, rules: Sequence[KeepRule]) -> list[tuple[float, float]]:
        """For each rule, over the selection days: wake-ups a day, mean idle nodes."""
        wakes, idle, slots = np.zeros(len(rules)), np.zeros(len(rules)), 0
        for since, until in CHOSEN_ON:
            first, last = self.span(since, until)
            free = np.full(len(self.demand), np.inf)
            found = replay_slots(self.demand, free, peaks, rules, first, last)
            wakes += [one.wake_up_events for one in found]
            idle += [one.nodes_idle * one.slots for one in found]
            slots += last - first
        return list(zip((wakes * DAY_SLOTS / slots).tolist(), (idle / slots).tolist(), strict=True))

    def on_test(self, peaks: Floats, rules: Sequence[KeepRule]) -> list[SlotOutcome]:
        return replay_slots(self.demand, self.total, peaks, rules, *self.test)


def seconds(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def run(series: NodeDemand) -> dict[str, Any]:
    """The whole report."""
    replays = Replays(series)
    known = families(replays.first_slot)
    tried: list[dict[str, Any]] = []
    steps = [(family, one) for family, members in known.items() for one in members]
    for family, forecast in track(steps, "settings", console=Console(stderr=True), transient=True):
        peaks = forecast.peaks(replays.demand)
        before, outcomes = replays.before(peaks, RULES), replays.on_test(peaks, RULES)
        tried += [
            {"family": family, "forecast": forecast.name, "rule": rule, "before": pair, "test": outcome}
            for rule, pair, outcome in zip(RULES, before, outcomes, strict=True)
        ]
    chosen = [
        {"budget": budget, **row, "of": family}
        for budget in BUDGETS
        for family in (*known, "any")
        if (row := best(tried, budget, family))
    ]
    return {
        "baselines": baselines(replays),
        "chosen": chosen,
        "hindsight": hindsight(tried),
        "goal": goal(tried),
        "forecasts": forecasts(replays),
        "minutes": minutes(series, chosen, known),
        "published": PUBLISHED,
        "settings_tried": len(tried),
    }


def best(tried: list[dict[str, Any]], budget: float, family: str) -> dict[str, Any] | None:
    """The setting with the fewest idle nodes before December, at no more wake-ups a day than `budget`."""
    fits = [one for one in tried if family in (one["family"], "any") and one["before"][0] <= budget + 1e-9]
    return min(fits, key=lambda one: one["before"][1], default=None)


def hindsight(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best utilisation on the test days at no more wake-ups, and as many slots short, by wake-ups."""
    found = []
    for events in (3, 5, 7, 10, 14, 20, 28, 56):
        fits = [one for one in tried if max(one["test"].wake_up_events, one["test"].slots_short) <= events]
        if fits:
            found.append({"events": events, **max(fits, key=lambda one: one["test"].utilisation_frac)})
    return found


def goal(tried: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best on the test days with at most 15 nodes booted and 2 node-slots short a day, in hindsight."""
    fits = [
        one for one in tried if one["test"].nodes_booted <= 15 * 14 and one["test"].node_slots_short <= 2 * 14
    ]
    return max(fits, key=lambda one: one["test"].utilisation_frac, default=None)


def baselines(replays: Replays) -> dict[str, SlotOutcome]:
    """Rules without a choice, and Helios' rule with the values of its code."""
    demand, (first, last) = replays.demand, replays.test
    none = np.zeros(last - first)
    still = summarise_slots(
        demand[first:last], replays.total[first:last], replays.total[first:last], none, none
    )
    at_once = {"ramp_nodes": 0, "falling_slots": 0}

    def simple(forecast: DemandForecast, buffer: int) -> SlotOutcome:
        rule = KeepRule(buffer_nodes=buffer, wake_buffer_nodes=buffer, **at_once)
        return replays.on_test(forecast.peaks(demand), [rule])[0]

    near, far = (
        Boosted(slots, 0.5, "mean", first_slot=replays.first_slot).peaks(demand) for slots in (30, 60)
    )
    hour_before = np.full(len(demand), np.nan)
    hour_before[6:] = Boosted(6, 0.5, "end", first_slot=replays.first_slot).peaks(demand)[:-6]
    ahead = [
        np.array([hour_before[slot : min(slot + slots, last)].mean() for slot in range(last)])
        for slots in (30, 60)
    ]
    return {
        "no power-down": still,
        "reactive, no buffer": simple(Persistence(), 0),
        "demand + 10": simple(Persistence(), 10),
        "demand + 20": simple(Persistence(), 20),
        "trailing maximum of 24 h": simple(TrailingMaximum(DAY_SLOTS), 0),
        "Helios' rule, boosting, without the future": HeliosRule().replay(
            demand, replays.total, near, far, first, last, knows_slot=False
        ),
        "Helios' rule as in its code": HeliosRule().replay(
            demand, replays.total, ahead[0], ahead[1], first, last, knows_slot=True
        ),
    }


def forecasts(replays: Replays) -> dict[str, Any]:
    """Errors on the test days: of one slot ahead, and of the 90 % quantile of the highest of three hours."""
    demand, span = replays.demand, slice(*replays.test)
    single = {}
    for ahead, words in AHEAD.items():
        truth = future_ends(demand, ahead)[span]
        boosted = Boosted(ahead, 0.5, "end", first_slot=replays.first_slot).peaks(demand)[span]
        single[words] = {
            "persistence": float(np.abs(truth - demand[span]).mean()),
            "boosting": float(np.abs(truth - boosted).mean()),
        }
    truth = future_peaks(demand, 18)[span]
    wanted = [Persistence(), TrailingMaximum(18), TrailingMaximum(DAY_SLOTS), RecentRises(18, 7 * DAY_SLOTS)]
    quantile = {}
    for forecast in (*wanted, RecentRises(), Boosted(18, 0.9, first_slot=replays.first_slot)):
        off = truth - forecast.peaks(demand)[span]
        quantile[forecast.name] = {
            "pinball": float(np.maximum(0.9 * off, -0.1 * off).mean()),
            "covered_frac": float((off <= 0).mean()),
        }
    return {"single_slot_mae": single, "peak_of_3h_q90": quantile}


def minutes(
    series: NodeDemand, chosen: list[dict[str, Any]], known: dict[str, list[DemandForecast]]
) -> list[dict[str, Any]]:
    """The chosen settings on nodes that take time to boot, reviewed every ten minutes or every minute."""
    part = series.rows_between(seconds("2017-11-20"), seconds(TEST[1]))
    named = {one.name: one for members in known.values() for one in members if not isinstance(one, Boosted)}
    rows = []
    for budget, review_s, headroom in ((0.5, 600.0, 0), (0.5, 60.0, 0), (0.5, 60.0, 10), (2.0, 60.0, 0)):
        pick = best_of(chosen, budget, set(named))
        rule = msgspec.structs.replace(pick["rule"], headroom_nodes=headroom)
        service = PowerDownService(rule, named[pick["forecast"]])
        outcome = replay_states(part, service, PowerByState.from_gpus(), seconds(TEST[0]), review_s)
        rows.append({"budget": budget, "review_s": review_s, "headroom_nodes": headroom, "test": outcome})
    return rows


def best_of(chosen: list[dict[str, Any]], budget: float, names: set[str]) -> dict[str, Any]:
    fits = [one for one in chosen if one["budget"] == budget and one["forecast"] in names]
    return min(fits, key=lambda one: one["before"][1])


def words(rule: KeepRule) -> str:
    return (
        f"+{rule.buffer_nodes}, wake +{rule.wake_buffer_nodes}, "
        f"{f'{rule.ramp_nodes} a slot' if rule.ramp_nodes else 'at once'}"
        + (f", falling {rule.falling_slots * 10} min" if rule.falling_slots else "")
    )


def cells(outcome: SlotOutcome) -> tuple[str, ...]:
    return (
        f"{outcome.utilisation_frac:.1%}",
        f"{outcome.nodes_asleep:.1f}",
        f"{outcome.wake_up_events}",
        f"{outcome.wake_ups_a_day:.2f}",
        f"{outcome.nodes_booted:,}",
        f"{outcome.slots_short}",
        f"{outcome.node_slots_short:,}",
    )


FIGURES = (
    "node utilisation",
    "asleep",
    "wake-ups",
    "a day",
    "nodes booted",
    "slots short",
    "node-slots short",
)


def print_report(report: dict[str, Any], table: Callable[..., None]) -> None:
    table(
        "Rules on the test days", ("rule", *FIGURES), [(n, *cells(o)) for n, o in report["baselines"].items()]
    )
    table(
        "Settings chosen before December, at most this many wake-ups a day",
        ("budget", "family", "before: a day", "idle", "forecast", "rule", *FIGURES),
        [
            (
                f"{o['budget']:g}",
                o["of"],
                *(f"{value:.2f}" for value in o["before"]),
                o["forecast"],
                words(o["rule"]),
                *cells(o["test"]),
            )
            for o in report["chosen"]
        ],
    )
    table(
        f"In hindsight: the best of {report['settings_tried']:,} settings on the test days themselves",
        ("events, slots short <=", "forecast", "rule", *FIGURES),
        [(f"{o['events']}", o["forecast"], words(o["rule"]), *cells(o["test"])) for o in report["hindsight"]],
    )
    if report["goal"]:
        pick = report["goal"]
        table(
            "In hindsight: at most 15 nodes booted and 2 node-slots short a day",
            ("forecast", "rule", *FIGURES),
            [(pick["forecast"], words(pick["rule"]), *cells(pick["test"]))],
        )
    table(
        "One slot ahead, mean absolute error in nodes, test days",
        ("ahead", "persistence", "boosting"),
        [
            (n, *(f"{v:.2f}" for v in row.values()))
            for n, row in report["forecasts"]["single_slot_mae"].items()
        ],
    )
    table(
        "Highest demand of the next 3 h, as a 90 % quantile, test days",
        ("forecast", "pinball loss, nodes", "covered"),
        [
            (n, f"{row['pinball']:.2f}", f"{row['covered_frac']:.1%}")
            for n, row in report["forecasts"]["peak_of_3h_q90"].items()
        ],
    )
    table(
        "By minutes, with booting and energy",
        (
            "budget",
            "review",
            "headroom",
            "utilisation",
            "wake-ups",
            "booted",
            "slots short",
            "node-minutes",
            "kWh",
            "always on",
        ),
        [
            (
                f"{o['budget']:g}",
                f"{o['review_s']:g} s",
                f"{o['headroom_nodes']}",
                f"{o['test'].utilisation_frac:.1%}",
                f"{o['test'].wake_up_events}",
                f"{o['test'].nodes_booted}",
                f"{o['test'].slots_short}",
                f"{o['test'].node_minutes_short:.0f}",
                f"{o['test'].energy_kwh:,.0f}",
                f"{o['test'].always_on_kwh:,.0f}",
            )
            for o in report["minutes"]
        ],
    )


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n**{title}**\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--markdown", action="store_true", help="print tables for the documents")
    options = parser.parse_args()
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "facts"
    report = run(NodeDemand.read(folder / "philly_node_sequence.csv.gz"))
    print_report(report, markdown if options.markdown else print_table)
    if options.json:
        options.json.write_text(json.dumps(finite(msgspec.to_builtins(report)), indent=2) + "\n")


if __name__ == "__main__":
    main()
