"""`studies/models/mig_throughput.py` reproduces MISO's measured throughputs, and small jobs gain."""

from __future__ import annotations

from typing import Any

import pytest

from rlsched.models.mig import MEASURED_AS, combined_throughput
from studies.models.mig_throughput import kinds_of_jobs, measure, queue

COUNT = 336
"""Jobs that fill 8, 16, 24 and 56 places a whole number of times."""


def measured(workloads: list[str]) -> Any:
    return measure("x", queue(COUNT, workloads))


@pytest.mark.parametrize("workload", list(MEASURED_AS))
def test_measured_workloads_have_measured_throughput(workload: str) -> None:
    found = measured([workload])
    assert found.fit == "1 of 1"
    for layout, compute in (("7 x 1g", 1), ("3 x 2g", 2), ("2 x 3g", 3)):
        wanted = combined_throughput(*MEASURED_AS[workload], compute)
        assert found.throughput[layout] == pytest.approx(wanted, rel=1e-9)
        assert found.assumed[layout] == pytest.approx((wanted, wanted), rel=1e-9)


def test_three_times_the_work_needs_small_jobs() -> None:
    kinds = kinds_of_jobs(COUNT)
    small, large = (
        measure(kind, trace) for kind, trace in kinds.items() if kind.startswith(("small", "large"))
    )
    assert small.throughput["7 x 1g"] > 3.0
    assert min(small.assumed["7 x 1g"]) > 3.0
    assert max(large.assumed["7 x 1g"]) < 2.0
    assert small.energy["7 x 1g"] < large.energy["7 x 1g"] < 1.05
