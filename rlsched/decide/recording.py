"""A decision in progress: it becomes a `Decision`, with a record if one was requested."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from rlsched.cluster.arrays import columns
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start, Wait
from rlsched.decide.listing import plans_of, prices_of
from rlsched.decide.options import StartOptions
from rlsched.decide.record import QUEUED, DecisionRecord, Half, PlanSeen, Source
from rlsched.decide.scheduler import Decision
from rlsched.decide.schema import SCHEMA
from rlsched.decide.start import policy_start

_SCHEMA_HASH: Final = SCHEMA.hash


class Recording:
    """Created before a scheduler reads the state, so that time and state digest refer to that moment.

    Args:
        state: The state.
        partition: The partition of the decision.
        now_s: Now.
        wanted: Whether a record will be made.
        start: Start options of jobs; None: the options of a policy's reference rule.

    Attributes:
        wanted: Whether a record will be made; data that only a record needs can be skipped otherwise.
    """

    def __init__(
        self,
        state: ClusterState,
        partition: int,
        now_s: float,
        *,
        wanted: bool,
        start: StartOptions | None = None,
    ) -> None:
        self.wanted, self._start = wanted, start
        self._began = time.perf_counter()
        self._state, self._partition, self._now_s = state, partition, now_s
        self._digest = self._failed = ""
        try:
            self._digest = state.digest() if wanted else ""
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"

    def decision(
        self,
        action: Action,
        source: Source,
        policy_id: str,
        *,
        halves: Sequence[Half] = (),
        temperature: float = 0.0,
        value: float | None = None,
        marks_hold: bool = False,
        samples: int = 0,
        overruled: int = -1,
        made_room_for: int = -1,
    ) -> Decision:
        """Return the decision, timed until now; arguments as of `Decision` and `DecisionRecord`.

        `made_room_for`: number of the job that another job is preempted for, if known.
        """
        record, failed = None, self._failed
        if self.wanted and not failed:
            took_us = (time.perf_counter() - self._began) * 1e6
            try:
                turn = self._turn(action, made_room_for)
                plans, prices, plans_failed = self._plans(turn, action)
                record = DecisionRecord(
                    source=source,
                    policy_id=policy_id,
                    schema_hash=_SCHEMA_HASH,
                    state_digest=self._digest,
                    number=self._state.decisions,
                    now_s=self._now_s,
                    partition=self._state.partition_names[self._partition],
                    halves=list(halves),
                    temperature=temperature,
                    value=value,
                    action=action,
                    took_us=took_us,
                    samples=samples,
                    overruled=overruled,
                    turn=turn,
                    queue=self._queue(),
                    plans=plans,
                    prices=prices,
                    plans_failed=plans_failed,
                )
            except Exception as error:  # a failed record does not stop a decision
                failed = f"{type(error).__name__}: {error}"
        return Decision(
            action=action, source=source, record=record, marks_hold=marks_hold, record_failed=failed
        )

    def _plans(self, turn: int, action: Action) -> tuple[list[PlanSeen], dict[str, float], str]:
        """Plans of the job under consideration, the current prices, and why they could not be listed."""
        plans, prices = list[PlanSeen](), dict[str, float]()
        try:
            start = self._start or policy_start(self._state)
            prices = prices_of(self._state, self._partition, start)
            if turn >= 0:
                plans = plans_of(self._state, self._partition, turn, start, self._now_s, action)
        except Exception as error:  # a record without plans is still a record
            return plans, prices, f"{type(error).__name__}: {error}"
        return plans, prices, ""

    def _turn(self, action: Action, made_room_for: int) -> int:
        """Number of the job under consideration, -1 for none."""
        if isinstance(action, Start):
            return action.seq
        if isinstance(action, Wait):
            first = self._state.queue(self._partition)[:1]
            return int(columns(self._state.arrays.job)["seq"][first[0]]) if len(first) else -1
        return made_room_for

    def _queue(self) -> bytes:
        """Numbers of the first waiting jobs, in queue order."""
        arrays = self._state.arrays
        waiting = min(int(columns(arrays.derived.part)["queue_len"][self._partition]), QUEUED)
        first = arrays.derived.queue[self._partition, :waiting]
        return columns(arrays.job)["seq"][first].astype(np.int32).tobytes()
