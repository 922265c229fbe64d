"""Reads from a broker's journal what the broker has learnt: resource use, and speeds on shared GPUs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from rlsched.broker.base.ledger_models import workload_number
from rlsched.broker.base.profiles import Profiles
from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.reading import reading
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.models.learning import Observed
from rlsched.workload.predict.kinds import RUNNING_MEAN


class FromBroker(NamedTuple):
    """Resource use and speeds that a broker has learnt, as stored in its journal.

    Attributes:
        profiles: Resource use by user and command.
        pairs: Mean observed speed of each workload while it shares a GPU with another workload. Only
            workloads in this version's catalogue are included.
    """

    profiles: Profiles
    pairs: tuple[Observed, ...]


def learnt_by(path: str | Path) -> FromBroker:
    """Read from a broker's journal the resource use and the speeds that the broker has learnt.

    Args:
        path: The journal or the directory of a broker, which may be running.

    Raises:
        JournalError: there is no journal, or it is damaged.
    """
    from rlsched.decide.registry import load_scheduler

    path = Path(path)
    state = BrokerState(Predictions(RUNNING_MEAN), load_scheduler("fifo").order)
    state.on_finished = lambda _: state.forget(state.now_s, math.inf, 0)
    with reading(path / JOURNAL_FILE if path.is_dir() else path) as journal:
        state.replay(journal.rows())
    pairs = (
        Observed(one.workload, one.partner, one.kind, math.exp(one.mean))
        for one in state.models.pairs.kept()[1]
        if workload_number(one.workload) > 0 and workload_number(one.partner) > 0
    )
    return FromBroker(state.profiles, tuple(pairs))
