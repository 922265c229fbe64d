"""Fit the parameters of the synthetic generator to the real traces, and print them for workload/profiles.py.

    RLSCHED_DATA=../shared python -m studies.workload.fit_synth

Only the first 70 % of each trace's time is read (the training part), after the first 1 % of its jobs: some
traces begin with a few stragglers. Bursts follow `characterise/repeats.py`. Durations are
clipped at 7 days.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.profiles import DURATION_PROBABILITIES
from rlsched.workload.trace import Trace

SOURCES = {
    "helios": ("helios_venus",),
    "philly": ("philly",),
    "itp": ("ms_itp_01", "ms_itp_05", "ms_itp_07", "ms_itp_08"),
}
TRAIN_FRAC = 0.7
DURATION_CAP_S = 7 * 86400.0
CLASS_BOUNDS = (1, 2, 4, 8, 9, 17)
FEWEST_JOBS = 10
BURST_SIZES = (1, 2, 3, 4, 5, 7, 10, 15, 25, 40, 65, 100, 160, 260, 420)


def training_part(trace: Trace) -> Trace:
    """The jobs of the training part that request whole GPUs."""
    since = trace.submit_s[len(trace) // 100]
    until = TRAIN_FRAC * trace.submit_s[-1]
    whole = (trace.num_gpus >= 1) & (trace.num_gpus == np.floor(trace.num_gpus))
    return trace.select((trace.submit_s >= since) & (trace.submit_s <= until) & whole)


def classes_of(gpus: NDArray[np.float64]) -> list[int]:
    """Lower bounds of the size classes with enough jobs; the others join the class below."""
    bounds: list[int] = []
    for low, high in zip(CLASS_BOUNDS, (*CLASS_BOUNDS[1:], 1 << 30), strict=True):
        if low == 1 or np.count_nonzero((gpus >= low) & (gpus < high)) >= FEWEST_JOBS:
            bounds.append(low)
    return bounds


def normal_scores(values: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rank of each value within its group as a standard normal number; ties are broken by a seeded draw."""
    scores = np.empty(len(values))
    tie_break = np.random.default_rng(0).random(len(values))
    for key in np.unique(group):
        mine = np.flatnonzero(group == key)
        ranks = np.argsort(np.lexsort((tie_break[mine], values[mine])))
        scores[mine] = [NormalDist().inv_cdf((rank + 0.5) / len(mine)) for rank in ranks]
    return scores


def fit(name: str, traces: Sequence[Trace]) -> None:
    """Print one profile."""
    parts = [training_part(trace) for trace in traces]
    gpus = np.concatenate([part.num_gpus for part in parts])
    duration = np.minimum(np.concatenate([part.duration_s for part in parts]), DURATION_CAP_S)
    bounds = classes_of(gpus)
    size_class = np.searchsorted(bounds, gpus, side="right") - 1
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    burst = np.concatenate(
        [
            bursts(keyed(part.vc).code, part.num_gpus, part.submit_s) + start
            for part, start in zip(parts, offsets, strict=False)
        ]
    )
    _, first, burst, count = np.unique(burst, return_index=True, return_inverse=True, return_counts=True)

    print(f"== {name}: {', '.join(trace.name for trace in traces)}; {len(gpus):,} jobs")
    sizes, starts = np.unique(gpus[first], return_counts=True)
    kept = starts >= max(2, 0.0004 * len(first))
    print(
        "gpus =",
        {
            int(g): round(float(n / starts[kept].sum()), 5)
            for g, n in zip(sizes[kept], starts[kept], strict=True)
        },
    )
    print("durations = {")
    for k, low in enumerate(bounds):
        knots = np.quantile(duration[size_class == k], DURATION_PROBABILITIES)
        print(f"    {low}: {tuple(max(1, round(float(x))) for x in knots)},")
    print("}\nbursts = {")
    edges = np.array(BURST_SIZES)
    for k, low in enumerate(bounds):
        mine = count[size_class[first] == k]
        bins = np.searchsorted(edges, mine, side="right") - 1
        print(
            f"    {low}: {{"
            + ", ".join(
                f"{round(float(mine[bins == b].mean()))}: {round(float(np.mean(bins == b)), 5)}"
                for b in np.unique(bins)
            )
            + "},"
        )
    print("}")
    print_rhythm(parts)
    order = np.lexsort((np.arange(len(burst)), burst))
    same = np.diff(burst[order]) == 0
    score = normal_scores(duration, size_class)[order]
    submit = np.concatenate([part.submit_s for part in parts])[order]
    print("burst_gap_s =", round(float(np.diff(submit)[same].mean()), 1))
    print("burst_correlation =", round(float(np.corrcoef(score[1:][same], score[:-1][same])[0, 1]), 2))
    print()


def print_rhythm(parts: Sequence[Trace]) -> None:
    """Print burst starts by hour of the day and day of the week, and the further variation between days."""
    hours, weekdays, noise, weights = np.zeros(24), np.zeros(7), [], []
    for part in parts:
        _, first = np.unique(bursts(keyed(part.vc).code, part.num_gpus, part.submit_s), return_index=True)
        start = part.submit_s[first]
        hours += np.bincount((start // 3600 % 24).astype(int), minlength=24)
        weekdays += np.bincount((start // 86400 % 7).astype(int), minlength=7)
        days = np.bincount((start // 86400).astype(int))[int(start.min() // 86400) + 1 : -1]
        expected = weekdays[np.arange(len(days)) % 7] / weekdays.mean()
        noise.append(np.log(np.maximum(days, 1) / expected / max(1.0, days.mean())))
        weights.append(len(start))
    print("hours =", tuple((hours / hours.mean()).round(2).tolist()))
    print("weekdays =", tuple((weekdays / weekdays.mean()).round(2).tolist()))
    print("day_sigma =", round(float(np.average([x.std() for x in noise], weights=weights)), 2))
    lagged = [np.corrcoef(x[1:], x[:-1])[0, 1] for x in noise]
    print("day_correlation =", round(float(np.average(lagged, weights=weights)), 2))


def main() -> None:
    """Print every profile."""
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    for name, files in SOURCES.items():
        fit(name, [Trace.read(folder / f"{file}.csv.gz") for file in files])


if __name__ == "__main__":
    main()
