"""The GPUs of many jobs, or of a selection, can be read like a list of tuples."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched_envs.sim.attempt_log import Placements

TUPLES = [(3, 1), (), (7,), (4, 5, 6), ()]


@pytest.fixture
def placements() -> Placements:
    return Placements.of_tuples(TUPLES)


def test_it_reads_like_the_list(placements: Placements) -> None:
    assert len(placements) == 5
    assert list(placements) == TUPLES
    assert placements == TUPLES
    assert placements[-2] == (4, 5, 6)
    assert Placements.of_tuples([]) == []


@pytest.mark.parametrize(
    "part", [slice(0, 3), slice(2, None), slice(None, None, 2), slice(0, 0), slice(None)]
)
def test_slice_is_a_part_of_it(placements: Placements, part: slice) -> None:
    assert isinstance(placements[part], Placements)
    assert placements[part] == TUPLES[part]


@pytest.mark.parametrize("jobs", [[0, 3], [3, 0, 3, 1], [], [0, 1, 2, 3, 4]])
def test_some_jobs_in_any_order(placements: Placements, jobs: list[int]) -> None:
    assert placements.take(np.array(jobs, dtype=np.intp)) == [TUPLES[job] for job in jobs]


def test_all_of_them_are_not_copied(placements: Placements) -> None:
    assert placements[:] is placements
    assert placements.take(np.arange(5)) is placements


def test_unkept_rows_are_empty() -> None:
    at, gpu = np.array([0, 2, 3, 4]), np.array([8, 9, 5, 6], np.int32)
    kept = np.array([True, False, True])
    assert Placements.of_rows(5, np.array([0, 2, 4]), kept, at, gpu) == [(8, 9), (), (), (), (6,)]
