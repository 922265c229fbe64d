"""Predicted speed and energy of an attempt (one run of a job), from the decision that starts the attempt."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from rlsched.decide.record import DecisionRecord


class Outlook(NamedTuple):
    """Predictions for an attempt at its start; nan: unknown.

    Attributes:
        speed_frac: Predicted work per second, defined as `JobEvent.predicted_speed_frac`.
        energy_j: Energy until the job ends, joules.
    """

    speed_frac: float = math.nan
    energy_j: float = math.nan


UNKNOWN: Final = Outlook()


def outlook(record: DecisionRecord | None, *, counts_cores: bool) -> Outlook:
    """Return the predictions for the attempt that a decision starts.

    The predictions are nan if there is no record, no model, or no plan for this start in the record.

    Args:
        record: Record of the decision.
        counts_cores: Whether the measured energy of the attempt will include its CPU cores. True in a
            simulator; nodes measure only GPUs.
    """
    plan = next((plan for plan in record.plans if plan.chosen), None) if record is not None else None
    if plan is None or plan.rate is None or plan.gpu_w is None or plan.cores_w is None:
        return UNKNOWN
    power_w = plan.gpu_w + (plan.cores_w if counts_cores else 0.0)
    return Outlook(plan.rate, power_w * plan.run_s)
