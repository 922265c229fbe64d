"""Snapshots of the broker's state, stored in the journal, so that a start replays only the later entries.

A snapshot is valid only for its journal, and for the code, policy and predictor that made it. Without a valid
snapshot, all entries of the journal are replayed.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque

import msgspec

from rlsched.broker.journal.codec import PictureError, code_digest, pack, unpack
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.predict.predictor import Predictor
from rlsched.workload.predict.recent import Recent

FORMAT = 1
_AS_NEW: dict[type, dict[str, object]] = {
    BrokerState: {"on_finished": None, "table": None, "_can_run": {}},
    Predictions: {"_fits": 0, "_fitted": None, "_fitting": None, "_fit_error": None, "_drawn": 0},
    Predictor: {"_boosting": None, "_ended_at_fit": 0, "_ended_at_last": 0},
    Recent: {"_known": None},
}
"""Fields that a snapshot stores with these values instead of their present values, by class and field name.
For example, the boosting model is stored unfitted.
"""


def made_for(scheduler: Scheduler, predictions: str, half_life_s: float) -> str:
    """Return a hash of everything on which a snapshot depends, except the journal's entries.

    The policy's ID is included only if the policy has a strategy (which sets dials).

    Args:
        scheduler: Policy that decides.
        predictions: Text that identifies the run-time predictors (`Predictions.made_for`).
        half_life_s: Half-life of a user's usage for fair share, seconds.
    """
    strategy = scheduler.policy_id if scheduler.strategy is not None else ""
    depends = [code_digest(), scheduler.order, scheduler.abilities, strategy, predictions, repr(half_life_s)]
    said = msgspec.json.encode(depends)
    return hashlib.sha256(said).hexdigest()[:32]


def picture_of(state: BrokerState) -> bytes:
    """Serialise a broker's state, without the finished jobs, which are in the table of ended jobs.

    Raises:
        PictureError: the state contains an object that cannot be serialised.
    """
    live = copy.copy(state)
    live.jobs = {job.number: job for job in state.job_of_seq.values()}
    live.tokens = {job.spec.token: number for number, job in live.jobs.items()}
    live.ended_jobs = deque()
    return pack(live, _AS_NEW)


def book_of(picture: bytes) -> BrokerState:
    """Restore a broker's state from the bytes that `picture_of` returns.

    Raises:
        PictureError: the bytes cannot be read.
    """
    state = unpack(picture)
    if not isinstance(state, BrokerState):
        raise PictureError("expected the state of a broker, got another object")
    state.clear_on_finished()
    return state
