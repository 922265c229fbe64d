"""Checks of a run whether all wanted jobs have ended: at the usual times, but no job twice."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.arrays import records
from rlsched_envs.sim.engine import _ROWS_BETWEEN_LOOKS, _Stop
from rlsched_envs.sim.sim_arrays import RUN

ROWS = 5000


@pytest.mark.parametrize("seed", range(5))
def test_it_stops_at_the_first_check_after_all_wanted_jobs_ended(seed: int) -> None:
    """Jobs end some time after they have arrived, in any order."""
    rng = np.random.default_rng(seed)
    wanted = rng.random(ROWS) < (0.5, 1.0)[seed % 2]
    wanted[ROWS - 1500 :] = False
    done_at = np.arange(ROWS) + rng.integers(1, 900, ROWS)
    run, done_s = records(1, RUN), np.full(ROWS, np.nan)
    stop, looks = _Stop(run, done_s, wanted), 0
    for arrived in range(1, ROWS + 1):
        run.next_row = arrived
        done_s[done_at <= arrived] = arrived
        due = arrived >= stop.next_look_row
        looks += due
        assert stop.now() == (due and not np.isnan(done_s[wanted]).any())
        if due and not np.isnan(done_s[wanted]).any():
            break
        assert stop.next_look_row <= arrived + _ROWS_BETWEEN_LOOKS
    assert looks > 10
    assert arrived < ROWS


def test_without_wanted_jobs_it_never_stops() -> None:
    run, done_s = records(1, RUN), np.zeros(ROWS)
    stop = _Stop(run, done_s, None)
    run.next_row = ROWS
    assert stop.next_look_row > ROWS
    assert not stop.now()


def test_empty_list_of_wanted_jobs_stops_at_the_first_check() -> None:
    run, done_s = records(1, RUN), np.full(ROWS, np.nan)
    stop = _Stop(run, done_s, np.zeros(ROWS, np.bool_))
    assert not stop.now()
    run.next_row = _ROWS_BETWEEN_LOOKS
    assert stop.now()
