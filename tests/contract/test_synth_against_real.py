"""Synthetic workloads against the real traces that they are fitted to: docs/explanation/workload.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace

SOURCES = {
    "helios": ["helios_venus"],
    "philly": ["philly"],
    "itp": ["ms_itp_01", "ms_itp_05", "ms_itp_07", "ms_itp_08"],
}
DURATION_CAP_S = 7 * 86400.0
CLASSES = ((1, 1), (2, 7), (8, 8), (9, 1 << 20))


def training_part(trace: Trace) -> Trace:
    since, until = trace.submit_s[len(trace) // 100], 0.7 * trace.submit_s[-1]
    return trace.select((trace.submit_s >= since) & (trace.submit_s <= until))


@pytest.mark.parametrize("like", sorted(SOURCES))
def test_close_to_the_real_trace(shared_data: Path, like: str) -> None:
    parts = [training_part(Trace.read(shared_data / "traces" / f"{name}.csv.gz")) for name in SOURCES[like]]
    gpus = np.concatenate([part.num_gpus for part in parts])
    duration = np.minimum(DURATION_CAP_S, np.concatenate([part.duration_s for part in parts]))
    drawn, _ = synthesize(like, 100_000, 0.9, 1024, seed=0)
    assert np.median(drawn.duration_s) == pytest.approx(np.median(duration), rel=0.15)
    assert drawn.duration_s.mean() == pytest.approx(duration.mean(), rel=0.20)
    for low, high in CLASSES:
        real, ours = (gpus >= low) & (gpus <= high), (drawn.num_gpus >= low) & (drawn.num_gpus <= high)
        assert ours.mean() == pytest.approx(real.mean(), abs=0.03), f"share of jobs with {low} to {high} GPUs"
        real_work = (duration * gpus)[real].sum() / (duration * gpus).sum()
        our_work = (drawn.duration_s * drawn.num_gpus)[ours].sum() / (drawn.duration_s * drawn.num_gpus).sum()
        assert our_work == pytest.approx(real_work, abs=0.10), f"share of GPU-time with {low} to {high} GPUs"
