"""A decision while it is being taken: it becomes a `Decision`, with the record if one was asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action
from rlsched.decide.record import DecisionRecord, Half, Source
from rlsched.decide.rows.schema import SCHEMA
from rlsched.decide.scheduler import Decision


class Recording:
    """Begun before a scheduler looks at the state: the time counts, and the state's digest is of then.

    Attributes:
        wanted: Whether a record will be made; what only a record needs can be left undone otherwise.
    """

    def __init__(self, state: ClusterState, partition: int, now_s: float, *, wanted: bool) -> None:
        self.wanted = wanted
        self._began = time.perf_counter()
        self._state, self._partition, self._now_s = state, partition, now_s
        self._digest = state.digest() if wanted else ""

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
    ) -> Decision:
        """The decision, its time up to now; arguments are those of `Decision` and `DecisionRecord`."""
        record = None
        if self.wanted:
            record = DecisionRecord(
                source=source,
                policy_id=policy_id,
                schema_hash=SCHEMA.hash,
                state_digest=self._digest,
                number=self._state.decisions,
                now_s=self._now_s,
                partition=self._state.partition_names[self._partition],
                halves=list(halves),
                temperature=temperature,
                value=value,
                action=action,
                took_us=(time.perf_counter() - self._began) * 1e6,
                samples=samples,
                overruled=overruled,
            )
        return Decision(action=action, source=source, record=record, marks_hold=marks_hold)
