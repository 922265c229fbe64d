"""Whole nodes that sleep: the power of each state and the times between them."""

from __future__ import annotations

import math

import msgspec

from rlsched.errors import InputError


class NodePower(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An idle node's power by state, and how long it takes to leave and to come back.

    The defaults are assumptions for a node of eight GPUs, and every result that uses them says so: idle, such
    nodes draw 600 to 800 W (what is recalled for a DGX-1) and up to 1 kW (as ETH Zurich's computer science
    department says of its GPU servers); a management controller alone draws about 10 W; from power-on until
    the daemons answer it takes five to ten minutes. Measure your own.

    Raises:
        InputError: a value is negative or not finite.
    """

    idle_w: float = 600.0
    """On, draining or on the way down, without a job; what jobs draw comes on top elsewhere."""
    asleep_w: float = 10.0
    boot_w: float = 600.0
    boot_s: float = 300.0
    """From the command to wake until jobs may start."""
    shutdown_s: float = 60.0
    """From the command to sleep until power falls to `asleep_w`; `idle_w` until then."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"node power: {field} must be a finite number >= 0, got {value}")
