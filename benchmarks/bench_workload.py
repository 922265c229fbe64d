"""Speed of drawing, writing, reading and describing traces.

python benchmarks/bench_workload.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlsched.workload.describe import describe
from rlsched.workload.load import nodes_for_load, offered_load
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace

JOBS = 100_000


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest of some repeats."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    """Print a line for each measurement."""
    trace, spec = synthesize("helios", JOBS, 0.9, 1024, predictability="informative")
    print(f"{JOBS:,} helios-like jobs, best of 3, seconds")
    print(f"  synthesize                {best_of(3, lambda: synthesize('helios', JOBS, 0.9, 1024)):8.3f}")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".csv", ".csv.gz", ".parquet"):
            path = Path(folder) / f"t{suffix}"
            print(f"  write {suffix:<20}{best_of(3, partial(trace.write, path)):8.3f}")
            print(f"  read  {suffix:<20}{best_of(3, partial(Trace.read, path)):8.3f}")
    print(f"  offered load              {best_of(3, lambda: offered_load(trace, spec)):8.3f}")
    print(f"  nodes for a load          {best_of(3, lambda: nodes_for_load(trace, spec, 0.8)):8.3f}")
    print(f"  describe                  {best_of(3, lambda: describe(trace, spec)):8.3f}")


if __name__ == "__main__":
    main()
