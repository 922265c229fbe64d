"""Figures with their spread from recorded samples. Pure: no clock, no device, no file.

The figure of several windows is their median, its spread their interquartile range; spreads of derived
figures follow from first-order propagation of independent errors. None marks unknown figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rlsched.models.cores import CORE_EXPONENT, FEWEST_CORES
from studies.gpu.protocol import JobRun, Measurement, Sample, Window

MIN_ENERGY_S = 1.0
"""Minimum time between two used readings of the energy counter, seconds, because the counter moves in steps:
see studies/gpu/README.md."""
FED_FRAC = 0.95
"""A job is fed when it reaches this share of its speed without an input pipeline."""


class Estimate(NamedTuple):
    """A figure, its spread (in the same unit; None: a single value), and its number of readings."""

    value: float
    spread: float | None
    readings: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the median and the interquartile range; None if there are no values."""
    if not values:
        return None
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return Estimate(float(middle), float(high - low) if len(values) > 1 else None, len(values))


def counted_span(measurement: Measurement) -> tuple[float, float]:
    """Return the span in which all jobs ran: from `settle_s` after the last start to the first end.

    Without jobs, the span of all samples. If the span is empty, its end is before its start.
    """
    if not measurement.runs:
        times = [sample.at_s for sample in measurement.samples]
        return (min(times), max(times)) if times else (0.0, -1.0)
    begin_s = max(run.windows[0].start_s for run in measurement.runs if run.windows)
    return begin_s + measurement.settle_s, min(
        run.windows[-1].end_s if run.windows else -math.inf for run in measurement.runs
    )


def counted_windows(windows: Iterable[Window], span: tuple[float, float]) -> list[Window]:
    """Return the windows that lie entirely within the span."""
    begin_s, end_s = span
    return [window for window in windows if begin_s <= window.start_s and window.end_s <= end_s]


def samples_per_s(run: JobRun, span: tuple[float, float]) -> Estimate | None:
    """Speed of a job: samples consumed by its training, a second."""
    per_step = run.warm.samples_per_step
    windows = counted_windows(run.windows, span)
    return estimate([window.steps * per_step / (window.end_s - window.start_s) for window in windows])


def power_w(samples: Sequence[Sample], span: tuple[float, float]) -> Estimate | None:
    """Mean power of the board over stretches of `MIN_ENERGY_S` or a little more.

    From differences of the energy counter; a stretch in which it goes back (it restarts with the driver)
    is left out. If the GPU has no counter: from the readings of power.
    """
    within = [sample for sample in samples if span[0] <= sample.at_s <= span[1]]
    metered = [(sample.at_s, sample.energy_j) for sample in within if sample.energy_j is not None]
    if not metered:
        return estimate([sample.power_w for sample in within if sample.power_w is not None])
    values = []
    start_s, start_j = metered[0]
    for at_s, energy_j in metered[1:]:
        if energy_j < start_j:
            start_s, start_j = at_s, energy_j
        elif at_s - start_s >= MIN_ENERGY_S:
            values.append((energy_j - start_j) / (at_s - start_s))
            start_s, start_j = at_s, energy_j
    return estimate(values)


def utilisation_frac(samples: Sequence[Sample], span: tuple[float, float]) -> Estimate | None:
    """Mean of NVML's readings, which are themselves means of 1/6 s to 1 s, with their spread."""
    readings = [
        sample.utilisation_frac
        for sample in samples
        if span[0] <= sample.at_s <= span[1] and sample.utilisation_frac is not None
    ]
    found = estimate(readings)
    return None if found is None else found._replace(value=float(np.mean(readings)))


def memory_mib(measurement: Measurement, job: int) -> Estimate | None:
    """Return the peak memory of a job, from the readings of its process.

    Without such readings, the increase of the memory in use on the device; None if the GPU is shared.
    """
    pid = measurement.runs[job].warm.pid
    own = [sample.process_mib[pid] for sample in measurement.samples if pid in sample.process_mib]
    if own:
        return Estimate(float(max(own)), 0.0, len(own))
    used = [sample.used_mib for sample in measurement.samples if sample.used_mib is not None]
    if len(measurement.runs) > 1 or not used or measurement.used_before_mib is None:
        return None
    return Estimate(float(max(used) - measurement.used_before_mib), 0.0, len(used))


def ratio(upper: Estimate | None, lower: Estimate | None) -> Estimate | None:
    """upper / lower: d(a/b)/(a/b) = sqrt((da/a)^2 + (db/b)^2)."""
    if upper is None or lower is None or lower.value <= 0:
        return None
    value = upper.value / lower.value
    parts = [_relative(one) for one in (upper, lower)]
    known = [part for part in parts if part is not None]
    return Estimate(value, value * math.hypot(*known) if known else None, min(upper.readings, lower.readings))


def difference(upper: Estimate | None, lower: Estimate | None) -> Estimate | None:
    """upper - lower: d(a - b) = sqrt(da^2 + db^2)."""
    if upper is None or lower is None:
        return None
    known = [one.spread for one in (upper, lower) if one.spread is not None]
    spread = math.hypot(*known) if known else None
    return Estimate(upper.value - lower.value, spread, min(upper.readings, lower.readings))


def cores_to_feed(by_cores: dict[int, float], full: float) -> Estimate | None:
    """Return the fewest CPU cores that feed a job; with fewer, speed = full * (cores / needed)^0.83 (model).

    Every starved measurement (below `FED_FRAC` of `full`) gives an estimate; the median counts. None if
    no number of cores was measured, or if all measured numbers suffice but one core was not among them.

    Args:
        by_cores: Samples a second by number of cores.
        full: Samples a second without an input pipeline.
    """
    starved = {cores: speed for cores, speed in by_cores.items() if 0 < speed < FED_FRAC * full}
    if not starved:
        is_told = full > 0 and by_cores.get(1, 0.0) >= FED_FRAC * full
        return Estimate(FEWEST_CORES, None, 1) if is_told else None
    return estimate([cores * (full / speed) ** (1.0 / CORE_EXPONENT) for cores, speed in starved.items()])


def _relative(one: Estimate) -> float | None:
    return None if one.spread is None else abs(one.spread / one.value) if one.value else 0.0
