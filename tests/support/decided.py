"""A record of a decision."""

from __future__ import annotations

import numpy as np

from rlsched.decide.actions import Action, Start
from rlsched.decide.record import DecisionRecord, Names, PlanSeen


def record(number: int, action: Action | None = None) -> DecisionRecord:
    return DecisionRecord(
        source="policy",
        policy_id="p",
        state_digest="d",
        number=number,
        now_s=1.5,
        partition="shared",
        action=action or Start(seq=number, gpus=(0, 3)),
        took_us=12.5,
        turn=7,
        queue=np.array([7, 9], np.int32).tobytes(),
        plans=[PlanSeen(how="free", chosen=True, node="n0", run_s=0.1), PlanSeen(how="later", wait_s=None)],
        names=Names(jobs={7: "24"}, queue="24\n26"),
    )
