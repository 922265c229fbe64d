"""Markdown of the dial: GPU energy against mean JCT, and the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlsched_agents.evaluate.modelled import J_PER_KWH
from studies.policy.bar_studies import is_hand_rule
from studies.policy.cases import Case
from studies.policy.opponents import TUNING_REFERENCE, Entry
from studies.policy.runs import Result
from studies.policy.tables import Results, header, row


class Point(NamedTuple):
    """JCT and energy of one row on one case, relative to `qssf-backfill` at full clocks."""

    jct: float
    energy: float


def gpu_kwh(one: Result, until_s: float) -> float:
    """Energy of all GPUs until `until_s` of the replay: after its last event all of them are idle."""
    m = one.measured
    if m.gpu_kwh is None or m.replay_s is None or m.gpus_idle_w is None:
        raise ValueError(f"{one.policy}: a run without models draws nothing")
    return m.gpu_kwh + (until_s - m.replay_s) * m.gpus_idle_w / J_PER_KWH


def points(case: Case, rows: Sequence[Entry], results: Results) -> dict[str, Point]:
    """Every available row, by label; the energy of each until the last replay of the case has ended."""
    found = {one.label: results.get((case.name, one.policy.name, one.models)) for one in rows}
    there = {
        label: one for label, one in found.items() if one is not None and one.measured.replay_s is not None
    }
    base = there.get(TUNING_REFERENCE)
    if base is None or not base.metrics.jct_mean_s:
        return {}
    until_s = max(one.measured.replay_s or 0.0 for one in there.values())
    base_kwh = gpu_kwh(base, until_s)
    return {
        label: Point(
            (one.metrics.jct_mean_s or 0.0) / base.metrics.jct_mean_s, gpu_kwh(one, until_s) / base_kwh
        )
        for label, one in there.items()
    }


def beaten_by(point: Point, others: dict[str, Point]) -> list[str]:
    """Return the labels of rows better than `point`: less JCT or energy, and not more of the other."""
    return [
        label
        for label, one in others.items()
        if one.jct <= point.jct and one.energy <= point.energy and one != point
    ]


def mean_points(by_case: Sequence[dict[str, Point]]) -> dict[str, Point]:
    """Geometric means over the cases, of rows that all of them have."""
    shared = [label for label in by_case[0] if all(label in one for one in by_case)]

    def mean(values: Sequence[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values))

    return {
        label: Point(mean([one[label].jct for one in by_case]), mean([one[label].energy for one in by_case]))
        for label in shared
    }


def dial_lines(cases: Sequence[Case], rows: dict[str, list[Entry]], results: Results) -> list[str]:
    """The table over all cases, by energy; and the way to save GPU energy at no higher mean JCT."""
    by_case = [found for case in cases if (found := points(case, rows[case.trace], results))]
    if not by_case:
        return []
    means = mean_points(by_case)
    lines = [
        "GPU energy is that of all GPUs over the whole replay, idle ones too, until the last replay of a "
        "case has ended; CPUs and the rest of the nodes do not count. Both ratios are to `qssf-backfill` at "
        f"full clocks, geometric means over {len(by_case)} cases; «front» counts the cases in which no hand "
        "rule has both a lower JCT and less energy. Only `gittins` preempts.",
        "",
        *header("policy", "mean JCT", "GPU energy", "front", "beaten over all by"),
    ]
    hand = {label: one for label, one in means.items() if is_hand_rule(label)}
    for label, point in sorted(means.items(), key=lambda one: one[1].energy):
        front = sum(not beaten_by(one[label], _hand_rules(one, label)) for one in by_case)
        others = {name: one for name, one in hand.items() if name != label}
        over = sorted(beaten_by(point, others), key=lambda name: hand[name].energy)
        lines.append(
            row(
                f"`{label}`",
                f"{point.jct:.3f}",
                f"{point.energy:.3f}",
                f"{front} of {len(by_case)}",
                f"`{over[0]}`" if over else "",
            )
        )
    return [*lines, "", *_savings(means, by_case, cases)]


def _hand_rules(found: dict[str, Point], without: str) -> dict[str, Point]:
    return {name: one for name, one in found.items() if is_hand_rule(name) and name != without}


def _savings(
    means: dict[str, Point], by_case: Sequence[dict[str, Point]], cases: Sequence[Case]
) -> list[str]:
    """Return lines with the least energy at no higher mean JCT, for hand rules and for `gittins`."""
    lines = ["Least GPU energy at no higher mean JCT than `qssf-backfill` at full clocks:", ""]
    lines += header("", "hand rules", "", "`gittins`", "")
    named = [("over all", means), *((case.trace, one) for case, one in zip(cases, by_case, strict=True))]
    for where, found in named:
        cells = []
        for by_hand in (True, False):
            able = {
                label: one
                for label, one in found.items()
                if is_hand_rule(label) == by_hand and one.jct <= 1.0
            }
            least = min(able, key=lambda label: able[label].energy) if able else ""
            cells += [f"`{least}`", f"{able[least].energy:.3f}"] if able else ["", ""]
        lines.append(row(where, *cells))
    return lines
