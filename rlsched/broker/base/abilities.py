"""Decisions that the simulator can make and a live broker cannot, as text for users."""

from __future__ import annotations

from typing import Final

NOT_LIVE: Final = (
    "giving jobs fewer CPU cores than they requested",
    "power caps",
    "profiling runs",
)
"""Decisions that only the simulator can make: no option of a broker permits them."""


def not_live(*, shares: bool, speed_energy: float) -> str:
    """Return one line for users that lists the simulator's decisions that this broker does not make.

    Args:
        shares: Whether `--share` was given.
        speed_energy: Weight of energy against time, 0 to 1 (`--speed-energy`).
    """
    sharing = "sharing GPUs, choosing among GPU types by speed, and lending idle CPU cores (--share)"
    off = [] if shares else [sharing]
    if speed_energy <= 0.0:
        off.append("lower SM clocks (--speed-energy)")
    return f"in the simulator only: {', '.join(NOT_LIVE)}" + (f"; off here: {', '.join(off)}" if off else "")
