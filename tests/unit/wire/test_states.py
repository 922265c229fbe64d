"""Names of the states of jobs and ranks."""

from __future__ import annotations

from typing import get_args

from rlsched.wire import states
from rlsched.wire.states import ACTIVE, FINISHED, LIVE, JobState, RankState


def test_every_state_of_a_job_is_live_or_finished() -> None:
    assert (*LIVE, *FINISHED) == get_args(JobState)
    assert set(ACTIVE) < set(LIVE)


def test_every_state_has_a_constant_of_its_name() -> None:
    for state in (*get_args(JobState), *get_args(RankState)):
        assert getattr(states, state.upper()) == state
