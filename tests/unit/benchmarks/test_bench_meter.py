"""`benchmarks/bench_meter.py`: the cost of a node's meter stays below the figures of docs/how-to/nodes.md."""

from __future__ import annotations

import shutil

import pynvml
import pytest

from benchmarks.bench_meter import measure

DOCUMENTED_PERCENT = 0.44
DOCUMENTED_BYTES = 528.0
MOST_PERCENT = 2.0
"""Bound of the CPU time, percent of a core. The target is 1 %, which is too near for a test: on a
machine under load 0.59 to 0.81 % were measured, because other processes share the core's caches.
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the fake NVML is compiled by gcc")
def test_meter_costs_little_cpu_time_and_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    for name in ("nvmlLib", "_LoadNvmlLibrary"):  # `measure` replaces both
        monkeypatch.setattr(pynvml, name, getattr(pynvml, name))
    found = measure(gpus=8, ranks=16, children=8, idle=0, looks=60)
    assert found["scans"] > 0, "its processes were searched too"
    assert 0.0 < found["percent"] < MOST_PERCENT, (
        f"CPU time of the thread; documented: {DOCUMENTED_PERCENT} %"
    )
    assert found["bytes_job_minute"] < 1000.0, "of a job whose figures change all the time"
    assert found["bytes_job_minute"] == pytest.approx(DOCUMENTED_BYTES, rel=0.1)
