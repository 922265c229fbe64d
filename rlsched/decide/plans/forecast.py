"""When a waiting job is likely to fit, for people: by predictions and by the running jobs' time limits."""

from __future__ import annotations

from typing import NamedTuple

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import fits_slot
from rlsched.cluster.state import ClusterState
from rlsched.decide.compiled import for_state
from rlsched.decide.rules.reservation import AT_LIMITS, WITHIN_LIMITS, copy_nodes, let_end_by
from rlsched.jit import array_kernel


class Forecast(NamedTuple):
    """Seconds from now until a job fits, if no other job takes its place.

    Attributes:
        likely_s: With running jobs that end as predicted, and at their time limits at the latest. Infinite:
            they hold too few GPUs to make room.
        latest_s: With running jobs that end only at their time limits; infinite where these are too few.
    """

    likely_s: float
    latest_s: float


@array_kernel
def _fits_in_s(s: StateArrays, p: int, slot: int, now_s: float, by: int) -> float:
    """From now until the job in `slot` fits partition `p`, 0 only where it does; see `let_end_by`."""
    if fits_slot(s, p, slot):
        return 0.0
    return max(let_end_by(copy_nodes(s), p, slot, now_s, by) - now_s, 1.0)


def forecast(state: ClusterState, partition: int, seq: int, now_s: float) -> Forecast:
    """When a waiting job is likely to fit in a partition.

    Decisions go by predictions alone (`let_end_until_fits`): their reservations are compared with what a
    simulator does.
    """
    fits_in_s, slot = for_state(_fits_in_s, state), state.slot_of(seq)
    likely_s, latest_s = (
        float(fits_in_s(state.arrays, partition, slot, now_s, by)) for by in (WITHIN_LIMITS, AT_LIMITS)
    )
    return Forecast(likely_s, max(likely_s, latest_s))
