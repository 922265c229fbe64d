"""A record of a decision."""

from __future__ import annotations

import numpy as np

from rlsched.decide.actions import Action, Start
from rlsched.decide.record import DecisionRecord, Half


def record(number: int, action: Action | None = None) -> DecisionRecord:
    features = np.arange(6, dtype=np.float32) * np.float32(0.1)
    half = Half(
        kind="job",
        seqs=[-1, 7],
        nodes=[-1, 0],
        features=features.tobytes(),
        legal=[True, False],
        reasons=[0, 1],
        logits=[0.5, -1.25],
        choice=0,
        reference=1,
    )
    return DecisionRecord(
        source="policy",
        policy_id="p",
        schema_hash="h",
        state_digest="d",
        number=number,
        now_s=1.5,
        partition="shared",
        halves=[half],
        temperature=0.5,
        value=None,
        action=action or Start(seq=number, gpus=(0, 3)),
        took_us=12.5,
    )
