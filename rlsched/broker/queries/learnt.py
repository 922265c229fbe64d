"""Reads the learnt resource use of jobs from a journal."""

from __future__ import annotations

import math
from pathlib import Path

from rlsched.broker.base.profiles import Profiles
from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.reading import reading
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.workload.predict.kinds import RUNNING_MEAN


def learnt_profiles(path: str | Path) -> Profiles:
    """Return the profiles that a broker has learnt, from its journal or directory; it may be running.

    Raises:
        JournalError: there is no journal, or it is damaged.
    """
    from rlsched.decide.registry import load_scheduler

    path = Path(path)
    state = BrokerState(Predictions(RUNNING_MEAN), load_scheduler("fifo").order)
    state.on_finished = lambda _: state.forget(state.now_s, math.inf, 0)
    with reading(path / JOURNAL_FILE if path.is_dir() else path) as journal:
        state.replay(journal.rows())
    return state.profiles
