"""The guard: a fallback decides if a policy fails, requests an illegal action, is late, or drifts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Start
from rlsched.decide.compiled import for_state
from rlsched.decide.dials.observing import FIXED, NAMES
from rlsched.decide.dials.turning import refuse_dials
from rlsched.decide.drift import NO_RANGES, Drift, DriftWatch
from rlsched.decide.options import NO_PRICE
from rlsched.decide.price import defer_jobs
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.energy.relative import PricesAsked
from rlsched.errors import AllocationError

REMEMBERED_SETTINGS: Final = 24
"""Number of the latest dial updates from which drift is computed. The updates are about ten minutes apart."""


class Guarded(Scheduler):
    """A policy's scheduler with a fallback, which is a second scheduler.

    The fallback decides if

    - the policy raises an exception, or requests an action that the ledger would reject;
    - the policy exceeds the time budget of a decision: the fallback takes this decision and the next
      `penalty_decisions` decisions;
    - the policy's strategy raised an exception, or set dials out of range: all dials are 0 until the next
      update;
    - there is drift: the policy's recent input is outside the ranges seen in training (`DriftWatch`).

    The guarded scheduler has the name, the queue order and the abilities of the policy.

    Attributes:
        interventions: Number of interventions of the guard, by reason.
    """

    def __init__(
        self,
        policy: Scheduler,
        fallback: Scheduler,
        *,
        budget_ms: float = 100.0,
        penalty_decisions: int = 100,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if policy.order != fallback.order:
            raise ValueError(
                f"fallback {fallback.name!r} keeps the queue by {fallback.order.in_words}, "
                f"policy {policy.name!r} by {policy.order.in_words}: choose a fallback with the same order"
            )
        if fallback.abilities.preempts and not policy.abilities.preempts:
            raise ValueError(
                f"fallback {fallback.name!r} preempts jobs, but policy {policy.name!r} does not: choose a "
                "fallback that does not preempt"
            )
        self.name, self.policy_id = policy.name, policy.policy_id
        self.order, self.oracle = policy.order, policy.oracle
        both = zip(policy.abilities.prices_asked, fallback.abilities.prices_asked, strict=True)
        asked = PricesAsked(*map(any, both))
        self.abilities = msgspec.structs.replace(policy.abilities, prices_asked=asked)
        self.strategy, self.price_options = policy.strategy, policy.price_options
        self.interventions: dict[str, int] = {}
        self._policy, self._fallback = policy, fallback
        self._budget_ms, self._penalty = budget_ms, penalty_decisions
        self._clock = clock
        self._resting = 0
        self._dials_failed = ""
        self.familiar = policy.familiar
        self._settings_refused = 0
        self._watch: DriftWatch | None = None
        if self.strategy is not None and self.familiar is not None and self.familiar.columns:
            self._watch = DriftWatch(self.familiar, NAMES, REMEMBERED_SETTINGS, FIXED)

    def replaced_by_fallback(self) -> str:
        """Return the reason why the fallback decides now; "" if the policy decides."""
        if self._drifting:
            return self._drift_words()
        if self._dials_failed:
            return f"dials: {self._dials_failed}"
        return f"late: the fallback decides the next {self._resting} decisions" if self._resting else ""

    @property
    def _drifting(self) -> bool:
        return self._watch is not None and self._watch.active

    def _drift_words(self) -> str:
        assert self._watch is not None
        return f"drift: {self._watch.in_words or 'less than before'}"

    def drift(self) -> Drift | None:
        """Return how the policy's input differs from the training; None for an untrained policy."""
        if self.strategy is None:
            return None
        if self._watch is None:
            return Drift(note=NO_RANGES, settings_refused=self._settings_refused)
        return Drift(
            active=self._watch.active,
            looks=self._watch.looks,
            outside=self._watch.outside(),
            settings_refused=self._settings_refused,
        )

    def review_s(self, state: ClusterState) -> float:
        """Return the next time at which the policy must decide because of the price or the power limit."""
        return self._policy.review_s(state)

    def pauses(self, state: ClusterState, partition: int, now_s: float) -> bool:
        """Return whether the scheduler that decides now (policy or fallback) must preempt a running job."""
        return self._deciding().pauses(state, partition, now_s)

    def keeps_limit(self) -> bool:
        """Return whether the scheduler that decides now (policy or fallback) keeps the power limit itself."""
        return self._deciding().keeps_limit()

    def _deciding(self) -> Scheduler:
        return self._fallback if self.replaced_by_fallback() else self._policy

    def begin_instant(self, state: ClusterState, now_s: float) -> None:
        """Update the policy's dials that are due; if the strategy fails or there is drift, set all to 0."""
        due = state.arrays.dials.dial.due != 0 if self.strategy is not None else None
        self._set_dials(state, now_s)
        if due is None or not due.any():
            return
        dial = state.arrays.dials.dial
        self._settings_refused += int(dial.refused[due].sum())
        if self._watch is None:
            return
        was = self._watch.active
        for p in np.flatnonzero(due & (dial.due == 0)):
            self._watch.observe_rows(state.arrays.dials.seen[p : p + 1])
        if self._watch.active:
            refuse_dials(state)
        elif was:
            self._dials_failed = "the cluster was outside the ranges of its training"

    def _set_dials(self, state: ClusterState, now_s: float) -> None:
        try:
            self._policy.begin_instant(state, now_s)
        except Exception as error:  # if a strategy raises, the settings apply without dials
            self._dials_failed = f"{type(error).__name__}: {error}"
            refuse_dials(state)
            if state.arrays.scratch[0].deferred:
                defer = for_state(defer_jobs, state)
                defer(state.arrays, NO_PRICE, False, now_s)  # returns the deferred jobs to the queues
        else:
            if self.strategy is not None and not state.arrays.dials.dial.refused.any():
                self._dials_failed = ""

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the policy's decision, or the fallback's decision with the reason in `Decision.guard`."""
        if self._drifting:
            return self._fall_back(self._drift_words(), state, partition, now_s, record)
        if self.strategy is not None and state.arrays.dials.dial.refused[partition]:
            why = self._dials_failed or "the strategy set dials out of range, or to NaN"
            return self._fall_back(f"dials: {why}; all are at 0", state, partition, now_s, record)
        if self._resting > 0:
            self._resting -= 1
            return self._fall_back("late", state, partition, now_s, record)
        began = self._clock()
        try:
            decision = self._policy.decide(state, partition, now_s, record=record)
            check_action(decision.action, state, now_s)
        except AllocationError as error:
            return self._fall_back(f"illegal: {error}", state, partition, now_s, record)
        except FloatingPointError as error:
            return self._fall_back(f"non-finite: {error}", state, partition, now_s, record)
        except Exception as error:  # the cluster keeps running, whatever error a policy raises
            return self._fall_back(
                f"failed: {type(error).__name__}: {error}", state, partition, now_s, record
            )
        if (self._clock() - began) * 1e3 > self._budget_ms:
            self._resting = self._penalty
            return self._fall_back("late", state, partition, now_s, record)
        return decision

    def _fall_back(
        self, why: str, state: ClusterState, partition: int, now_s: float, record: bool
    ) -> Decision:
        kind = why.partition(":")[0]
        self.interventions[kind] = self.interventions.get(kind, 0) + 1
        decision = self._fallback.decide(state, partition, now_s, record=record)
        noted = decision.record and msgspec.structs.replace(decision.record, source="guard", guard=why)
        return msgspec.structs.replace(decision, source="guard", record=noted, guard=why)


def check_action(action: Action, state: ClusterState, now_s: float) -> None:
    """Raise an AllocationError if the ledger would reject an action."""
    if isinstance(action, Start):
        state.check_start(
            action.seq,
            action.gpus,
            action.share_milli,
            action.sm_clock_frac,
            action.node,
            action.share_with,
            action.cpu_milli_each,
        )
    elif isinstance(action, Preempt):
        state.check_preempt(action.seq, now_s, moved_for=action.moved_for)
    else:
        action.check(now_s)
