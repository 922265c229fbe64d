"""What a batch of decision records says in numbers and in a table: pure functions, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.plans.words import in_words
from rlsched.decide.record import DecisionRecord, Half, PlanSeen, Source

SOURCES: Final[tuple[str, ...]] = get_args(Source)
ALTERNATIVES: Final = 3
"""Candidates beside the chosen one that a table row names."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """One point on every curve of a decision board, from a batch of successive decisions.

    Attributes:
        scalars: By tag, with the unit at its end. Tags of which the batch knows nothing are absent.
        histograms: By tag, one value a decision. No tag is also one of `scalars`: TensorBoard gives a tag to
            one plugin only.
    """

    scalars: dict[str, float]
    histograms: dict[str, Floats]


def kind_of(action: Action) -> str:
    """`start`, `wait` or `preempt`."""
    return str(type(action).__struct_config__.tag)


def probabilities(half: Half, temperature: float) -> Floats:
    """The softmax over the legal rows of one half, (K,), 0 where illegal; empty without logits.

    An arg max (temperature 0) is shown at temperature 1: how sure the network was, not how it drew.
    """
    if not half.logits:
        return np.empty(0)
    logits = np.where(half.legal, np.asarray(half.logits, dtype=np.float64), -np.inf)
    scaled = logits / (temperature if temperature > 0 else 1.0)
    if not np.isfinite(scaled).any():
        return np.zeros(len(logits))
    weights = np.exp(scaled - scaled.max())
    result: Floats = weights / weights.sum()
    return result


def chosen_probability(record: DecisionRecord) -> float | None:
    """Probability of what was taken, over both halves; None where no network was asked."""
    product, asked = 1.0, False
    for half in record.halves:
        shares = probabilities(half, record.temperature)
        if len(shares) and half.choice >= 0:
            product, asked = product * float(shares[half.choice]), True
    return product if asked else None


def entropy(record: DecisionRecord) -> float | None:
    """Entropy of the first half, nats; None where no network was asked."""
    shares = probabilities(record.halves[0], record.temperature) if record.halves else np.empty(0)
    if not len(shares):
        return None
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def off_reference(record: DecisionRecord) -> bool:
    """Whether something else was taken than the reference rule would have."""
    return any(half.choice != half.reference for half in record.halves)


def summarise(records: Sequence[DecisionRecord]) -> Summary:
    """Counts, probabilities, entropy, value and time of a batch of at least one decision."""
    scalars: dict[str, float] = {}
    for source in SOURCES:
        scalars[f"decisions/source_{source}_count"] = sum(record.source == source for record in records)
    kinds = [kind_of(record.action) for record in records]
    for kind in sorted({"start", "wait", *kinds}):
        scalars[f"decisions/kind_{kind}_count"] = kinds.count(kind)
    scalars["decisions/guard_stepped_in_count"] = sum(bool(record.guard) for record in records)
    clocks = [record.action.sm_clock_frac for record in records if isinstance(record.action, Start)]
    if clocks:
        scalars["decisions/start_sm_clock_mean_frac"] = float(np.mean(clocks))
    offered = [record for record in records if record.halves]
    if offered:
        scalars["decisions/off_reference_frac"] = float(np.mean([off_reference(one) for one in offered]))
        legal = [sum(record.halves[0].legal) for record in offered]
        scalars["decisions/legal_candidates_mean_count"] = float(np.mean(legal))
    planned = [record for record in records if record.plans]
    if planned:
        ways = [sum(not plan.verdict for plan in record.plans) for record in planned]
        scalars["decisions/open_plans_mean_count"] = float(np.mean(ways))
    histograms: dict[str, Floats] = {}
    took_us = _finite([record.took_us for record in records])
    if len(took_us):
        scalars["time/decision_p50_us"] = float(np.percentile(took_us, 50))
        scalars["time/decision_p99_us"] = float(np.percentile(took_us, 99))
        histograms["distribution/decision_us"] = took_us
    for tag, values in (
        ("policy/chosen_probability_frac", [chosen_probability(record) for record in records]),
        ("policy/entropy_nats", [entropy(record) for record in records]),
        ("policy/value_return", [record.value for record in records]),
    ):
        known = _finite(values)
        if len(known):
            scalars[tag] = float(known.mean())
            histograms[tag.replace("policy/", "distribution/")] = known
    return Summary(scalars, histograms)


def _finite(values: Sequence[float | None]) -> Floats:
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    return known[np.isfinite(known)]


def decision_table(records: Sequence[DecisionRecord]) -> str:
    """The decisions as a Markdown table, newest first, each with its best alternatives."""
    lines = [
        "| decision | now (s) | partition | by | done | probability | value | best alternatives | us |",
        "|---:|---:|---|---|---|---:|---:|---|---:|",
    ]
    for record in reversed(records):
        by = f"{record.source} ({record.guard})" if record.guard else record.source
        chance = chosen_probability(record)
        value = "" if record.value is None else f"{record.value:.3f}"
        lines.append(
            f"| {record.number} | {record.now_s:.0f} | {_cell(record.partition)} | {_cell(by)} "
            f"| {_done(record)} | {'' if chance is None else f'{chance:.3f}'} | {value} "
            f"| {_alternatives(record)} | {record.took_us:.0f} |"
        )
    return "\n".join(lines)


def _done(record: DecisionRecord) -> str:
    match record.action:
        case Start(seq=seq, gpus=gpus, sm_clock_frac=clock):
            count = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
            for plan in record.plans:
                if plan.chosen:
                    return f"start {_job(record, seq)} on {count}: {_plan(record, plan)}"
            node = _chosen_node(record)
            at = f", clock {clock:.2f}" if clock != 1.0 else ""
            where = f", {_cell(record.names.node(node))}" if node >= 0 else ""
            return f"start {_job(record, seq)} on {count}{where}{at}"
        case Preempt(seq=seq, moved_for=other):
            return f"preempt {_job(record, seq)}" + (f" for {_job(record, other)}" if other >= 0 else "")
        case Wait(until_s=None):
            return "wait"
        case Wait(until_s=until_s):
            return f"wait until {until_s:.0f} s"


def _job(record: DecisionRecord, seq: int) -> str:
    return _cell(record.names.job(seq))


def _plan(record: DecisionRecord, plan: PlanSeen) -> str:
    return _cell(in_words(plan, record.names.job))


def _chosen_node(record: DecisionRecord) -> int:
    """First node of what was taken; -1 where no row shows it (a rule sees jobs outside the window)."""
    half = record.halves[-1] if record.halves else None
    return half.nodes[half.choice] if half is not None and half.choice >= 0 else -1


def _alternatives(record: DecisionRecord) -> str:
    """What else could have been done: legal rows, the likeliest first; of a rule, the plans of the job."""
    if not record.halves:
        others = [one for one in record.plans if not one.chosen and not one.verdict and one.how != "later"]
        return "; ".join(_plan(record, one) for one in others[:ALTERNATIVES])
    half = record.halves[0]
    shares = probabilities(half, record.temperature)
    rows = [row for row, legal in enumerate(half.legal) if legal and row != half.choice]
    if len(shares):
        rows.sort(key=lambda row: -shares[row])
    named = []
    for row in rows[:ALTERNATIVES]:
        what = "wait" if half.seqs[row] < 0 else _job(record, half.seqs[row])
        what += f" {shares[row]:.3f}" if len(shares) else ""
        named.append(what + (" (reference)" if row == half.reference else ""))
    left = len(rows) - len(named)
    return ", ".join(named) + (f", {left} more" if left > 0 else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
