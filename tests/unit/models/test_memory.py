"""Memory admission with its margin, and failures that end neighbours."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models import memory

untimed = settings(deadline=None)
"""The first call of a kernel compiles it."""

mib = st.floats(0.0, 2e5)


def test_single_job_may_use_all_of_a_gpu() -> None:
    assert memory.fits_memory(16_160.0, 0.0, 0, 16_160.0)
    assert not memory.fits_memory(16_160.0, 0.0, 0, 16_161.0)


def test_two_jobs_leave_the_margin_free() -> None:
    assert memory.fits_memory(10_000.0, 4_000.0, 1, 5_000.0)
    assert not memory.fits_memory(10_000.0, 4_000.0, 1, 5_001.0)


@pytest.mark.parametrize("tenants", [0, 1, 3])
def test_job_with_unknown_memory_does_not_share(tenants: int) -> None:
    assert memory.fits_memory(10_000.0, 10.0, tenants, math.nan) == (tenants == 0)


def test_no_job_fits_next_to_unknown_memory() -> None:
    assert not memory.fits_memory(10_000.0, math.nan, 1, 1.0)


def test_gpu_with_unknown_memory_refuses_no_job() -> None:
    assert memory.fits_memory(math.nan, 1e9, 3, 1e9)


@untimed
@given(mib, mib, st.integers(0, 4), mib, mib)
def test_smaller_job_fits_wherever_a_larger_one_does(
    gpu: float, used: float, tenants: int, one: float, other: float
) -> None:
    small, large = sorted((one, other))
    assert memory.fits_memory(gpu, used, tenants, small) >= memory.fits_memory(gpu, used, tenants, large)


@untimed
@given(mib, mib, mib)
def test_jobs_admitted_to_a_shared_gpu_leave_a_margin(gpu: float, used: float, job: float) -> None:
    if memory.fits_memory(gpu, used, 1, job):
        assert used + job <= gpu * (1 - memory.MARGIN_FRAC)


def test_jobs_ended_by_a_fault() -> None:
    shared = dict(zip(memory.SHARING_MODES, memory.FAULT_SHARED, strict=True))
    assert shared == {"time-sliced": False, "mps": True, "mig": False}
    assert memory.SHARING_MODES[memory.MPS] == "mps"
    assert memory.SHARING_MODES[memory.MIG] == "mig"
    assert memory.SHARING_MODES[memory.TIME_SLICED] == "time-sliced"
