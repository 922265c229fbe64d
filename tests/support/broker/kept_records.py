"""A record as a broker stores it."""

from __future__ import annotations

from rlsched.decide.actions import Wait
from rlsched.decide.record import DecisionRecord


def record(number: int) -> DecisionRecord:
    return DecisionRecord(
        source="rule",
        policy_id="fifo",
        schema_hash="",
        state_digest="",
        number=number,
        now_s=1.0,
        partition="shared",
        halves=[],
        temperature=0.0,
        value=None,
        action=Wait(),
        took_us=1.0,
    )
