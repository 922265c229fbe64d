"""Time of `rlsched trace describe` for a million jobs: the numbers and the page.

python benchmarks/bench_report.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from rlsched.report.page import write_page
from rlsched.workload.describe import describe
from rlsched.workload.synth import synthesize

JOBS = 1_000_000
TARGET_S = 60.0


def main() -> None:
    """Print CPU seconds of each step, and the target for both."""
    trace, spec = synthesize("helios", JOBS, 0.9, 1024, predictability="causal")
    trace.extra["queue_s"] = np.random.default_rng(0).exponential(600, len(trace))
    began = time.process_time()
    report = describe(trace, spec)
    described = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_page(report, path)
        size_kib = path.stat().st_size / 1024
    drawn = time.process_time()
    print(f"{JOBS:,} helios-like jobs, CPU seconds")
    print(f"  the numbers (describe)    {described - began:8.2f}")
    print(f"  the page ({size_kib:,.0f} KiB)        {drawn - described:8.2f}")
    print(f"  both                      {drawn - began:8.2f}  (target: below {TARGET_S:.0f})")


if __name__ == "__main__":
    main()
