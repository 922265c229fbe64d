"""Computes statistics of a batch of decision records. The functions are pure and use no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.actions import Action, Start
from rlsched.decide.record import DecisionRecord, Source
from rlsched.decisions.decision_text import probabilities

SOURCES: Final[tuple[str, ...]] = get_args(Source)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Statistics of a batch of successive decisions: one point of each curve.

    Attributes:
        scalars: Values by tag; a tag ends with the unit. Tags without data in the batch are missing.
        histograms: One value per decision, by tag. No tag is in both `scalars` and `histograms`, because
            TensorBoard gives each tag to one plugin only.
    """

    scalars: dict[str, float]
    histograms: dict[str, Floats]


def kind_of(action: Action) -> str:
    """Return the kind of an action: `start`, `wait` or `preempt`."""
    return str(type(action).__struct_config__.tag)


def chosen_probability(record: DecisionRecord) -> float | None:
    """Return the probability of the chosen action, the product of both halves; None if no network decided."""
    product, asked = 1.0, False
    for half in record.halves:
        shares = probabilities(half, record.temperature)
        if len(shares) and half.choice >= 0:
            product, asked = product * float(shares[half.choice]), True
    return product if asked else None


def entropy(record: DecisionRecord) -> float | None:
    """Return the entropy of the first half of the action, nats; None if no network decided."""
    shares = probabilities(record.halves[0], record.temperature) if record.halves else np.empty(0)
    if not len(shares):
        return None
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def off_reference(record: DecisionRecord) -> bool:
    """Return whether the policy's choice differs from the choice of the reference rule."""
    return any(half.choice != half.reference for half in record.halves)


def summarise(records: Sequence[DecisionRecord]) -> Summary:
    """Return the statistics of at least one decision: counts, probabilities, entropy, value, time."""
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
