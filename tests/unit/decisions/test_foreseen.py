"""The tab «Decisions» below the GPUs: measured power, and forecasts against real starts."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.board.views import overview
from rlsched.decisions import reading
from rlsched.decisions import store as store_module
from rlsched.decisions.reading import StoreReader, parts
from rlsched.decisions.schema import ForecastSeen, JobEvent, NodeChange, StoreInfo
from rlsched.decisions.store import DecisionStore
from tests.support.decided import record


def forecast(at_s: float, high_s: float, seen_s: float) -> ForecastSeen:
    return ForecastSeen(
        time_s=at_s,
        job=f"{at_s:g}",
        num_gpus=1.0,
        what="start",
        said_s=at_s - seen_s,
        low_s=10.0,
        median_s=20.0,
        high_s=high_s,
        seen_s=seen_s,
        raw=[10.0, 20.0, high_s],
    )


def attempt(job: str, gpu: int, start_s: float, end_s: float, energy_j: float) -> list[JobEvent]:
    at = {"job": job, "num_gpus": 1.0, "attempt": 1, "nodes": ["n0"], "gpus": [gpu]}
    start = JobEvent(time_s=start_s, kind="start", **at)
    end = JobEvent(
        time_s=end_s, kind="end", state="completed", run_s=end_s - start_s, energy_j=energy_j, **at
    )
    return [start, end]


def store(folder: Path) -> DecisionStore:
    return DecisionStore(folder, StoreInfo(time="trace", of="a test"), held_s=0.0)


def test_power_is_of_attempts_with_known_energy(tmp_path: Path) -> None:
    kept = store(tmp_path)
    events = [
        *attempt("a", 0, 0.0, 10.0, 3_000.0),
        *attempt("b", 1, 5.0, 20.0, 1_500.0),
        *attempt("c", 2, 8.0, 30.0, math.nan),
    ]
    kept.add_events([NodeChange(time_s=0.0, node="n0", num_gpus=4)])
    kept.add_events(sorted(events, key=lambda event: event.time_s))
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    power = reader.timeline.power(np.array([1.0, 6.0, 9.0, 15.0, 25.0]))
    assert power is not None
    assert power["power_w"].tolist() == [300.0, 400.0, 400.0, 100.0, 0.0]
    assert power["measured_gpus"].tolist() == [1.0, 2.0, 2.0, 1.0, 0.0]
    assert reader.timeline.curves(np.array([9.0, 25.0]))["busy_gpus"].tolist() == [3.0, 1.0]


def test_missing_power_and_forecasts_are_omitted(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.add_events(attempt("a", 0, 0.0, 10.0, math.nan))
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    shown = overview(reader, 0.0, 10.0)
    assert shown["power"] is None
    assert shown["forecasts"]["count"] == 0


def test_forecasts_are_limited_to_the_shown_time(tmp_path: Path) -> None:
    kept = store(tmp_path)
    came = [
        forecast(1.0, 30.0, 15.0),
        forecast(2.0, 30.0, 40.0),
        forecast(3.0, math.inf, 40.0),
        forecast(9.0, 30.0, 5.0),
    ]
    kept.add_events([came[1], came[0]])
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    kept.add_events(came[2:])
    kept.flush()
    assert reader.refresh()
    found = overview(reader, 1.0, 4.0)["forecasts"]
    assert (found["job"], found["within"]) == (["1", "2", "3"], [True, False, True])
    assert (found["count"], found["held"]) == (3, 2)
    thinned = reader.foreseen.outcomes_between(0.0, 10.0, 2)
    assert (thinned["job"], thinned["count"], thinned["held"]) == (["1", "3"], 4, 2)


def test_each_part_of_a_store_has_the_forecasts_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PART_BYTES", 1)
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 1)
    kept = store(tmp_path)
    for number in range(3):  # each batch is a segment, and each segment of decisions a part
        kept.add_decisions([msgspec.structs.replace(record(number), now_s=10.0 * number)])
        kept.add_events([forecast(10.0 * number, 30.0, 15.0)])
        kept.flush()
    found = parts(tmp_path)
    assert len(found) == 3
    for part in found:
        reader = StoreReader(tmp_path, part)
        reader.refresh()
        shown = reader.foreseen.outcomes_between(part.first_s, min(part.last_s, 1e9), 10)
        assert f"{part.first_s:g}" in shown["job"]
    kept.add_events([forecast(25.0, 30.0, 15.0)])
    kept.flush()
    assert reader.refresh()
    assert "25" in reader.foreseen.outcomes_between(20.0, 30.0, 10)["job"]
