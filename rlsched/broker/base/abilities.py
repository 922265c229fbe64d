"""What the simulator decides and a live broker does not, in words."""

from __future__ import annotations

from typing import Final

NOT_LIVE: Final = (
    "sharing by MPS",
    "MIG slices",
    "lending idle CPU cores",
    "power caps",
    "profiling runs",
)
"""Abilities of the simulator that no option of a broker turns on."""


def not_live(*, shares: bool, speed_energy: float) -> str:
    """One line for people: what the simulator decides and this broker does not.

    Args:
        shares: Whether `--share` was given.
        speed_energy: What energy counts against time, 0 to 1 (`--speed-energy`).
    """
    off = [] if shares else ["sharing GPUs and choosing among GPU types by speed (--share)"]
    if speed_energy <= 0.0:
        off.append("lower SM clocks (--speed-energy)")
    return f"in the simulator only: {', '.join(NOT_LIVE)}" + (f"; off here: {', '.join(off)}" if off else "")
