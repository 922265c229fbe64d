"""Converts a store of decisions to TensorBoard curves of the decisions and of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rlsched.board.curves import Curves
from rlsched.board.tags import CLUSTER_TAGS, DESCRIPTIONS, LAYOUT
from rlsched.board.writer import DecisionWriter
from rlsched.decisions.reading import StoreReader, parts, read_records
from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.decisions.timeline import CLASS_NAMES

POINTS: Final = 400
"""Number of points in a curve of the cluster, for each `Part` of a store (a period that fits into memory)."""


def draw_run(store: str | Path, folder: str | Path) -> int:
    """Write a store of decisions as the TensorBoard run `folder`, and remove older event files there.

    The wall time of a point is its time in the store: Unix seconds, or seconds of the trace. In curves of
    decisions, the step is the number of decisions so far. In curves of the cluster, the step is the time
    since the first event, seconds.

    Returns:
        The number of decisions.

    Raises:
        InputError: there is no store, the store is damaged, or the folder cannot be written.
    """
    records = read_records(store)
    for old in Path(folder).glob("events.out.tfevents.*"):
        old.unlink()
    time_s = 0.0
    with DecisionWriter(folder, wall_time=lambda: time_s) as writer:
        for record in records:
            time_s = record.now_s
            writer.add(record)
    curves = Curves(Path(folder), DESCRIPTIONS, LAYOUT, lambda: time_s)
    first_s: float | None = None
    for part in parts(Path(store)):
        reader = StoreReader(store, part)
        reader.refresh()
        for point_s, values in _course(reader.timeline):
            time_s, first_s = point_s, point_s if first_s is None else first_s
            curves.add(round(point_s - first_s), values)
    curves.close()
    return len(records)


def _course(timeline: StoredTimeline) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield pairs (time, values). `values`: tag of a curve of the cluster -> value at this time.

    `values` lacks the power while the power of a running job is unknown. `values` lacks the mean waiting time
    if no job has started since the previous time.
    """
    if not timeline.first_s < timeline.last_s:
        return
    at_s = np.linspace(timeline.first_s, timeline.last_s, POINTS)
    levels, power = timeline.curves(at_s), timeline.power(at_s)
    _, submits, starts = timeline.first_starts()
    known = np.isfinite(submits) & np.isfinite(starts)
    starts, waits = starts[known], (starts - submits)[known]
    bins = np.searchsorted(at_s, starts)
    for k, point_s in enumerate(at_s.tolist()):
        values = {
            tag: float(levels[f"waiting {name}"][k])
            for tag, name in zip(CLUSTER_TAGS[:3], CLASS_NAMES, strict=True)
        }
        gpus = float(levels["gpus"][k])
        values["cluster/busy_frac"] = min(float(levels["busy_gpus"][k]) / gpus, 1.0) if gpus else 0.0
        if np.any(bins == k):
            values["cluster/wait_mean_s"] = float(waits[bins == k].mean())
        if power is not None and levels["busy_gpus"][k] - power["measured_gpus"][k] <= 0.01:
            values["cluster/power_w"] = float(power["power_w"][k])
        yield point_s, values
