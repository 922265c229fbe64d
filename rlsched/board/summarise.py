"""Computes statistics of a batch of decision records. The functions have no side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.actions import Action, Start
from rlsched.decide.record import DecisionRecord, Source

SOURCES: Final[tuple[Source, ...]] = ("policy", "rule", "guard", "engine", "automatic")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Statistics of a batch of successive decisions: one point of each curve.

    Attributes:
        scalars: Tag -> value; a tag ends with the unit. Tags without data in the batch are missing.
        histograms: Tag -> one value per decision. No tag is in both dicts, because TensorBoard shows a tag in
            only one plugin.
    """

    scalars: dict[str, float]
    histograms: dict[str, Floats]


def kind_of(action: Action) -> str:
    """Return the kind of an action: `start`, `wait` or `preempt`."""
    return str(type(action).__struct_config__.tag)


def summarise(records: Sequence[DecisionRecord]) -> Summary:
    """Return the statistics of at least one decision."""
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
    return Summary(scalars, histograms)


def _finite(values: Sequence[float]) -> Floats:
    known = np.array(values, dtype=np.float64)
    return known[np.isfinite(known)]
