"""`PowerByState`: power of a node without jobs by power state, and the times of shutdown and boot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.models.power import NodePower


class PowerByState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Power of a node by state, without jobs, and the durations of shutdown and boot.

    Raises:
        InputError: a value is negative or not finite.
    """

    idle_w: float
    """Power while on, draining or shutting down, without jobs, W; the power of jobs is added elsewhere."""
    asleep_w: float
    boot_w: float
    boot_s: float
    """Time from the wake command until jobs can start."""
    shutdown_s: float
    """Time from the sleep command until power falls to `asleep_w`; the node draws `idle_w` until then."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"node power: {field} must be a finite number >= 0, got {value}")

    @classmethod
    def from_gpus(
        cls, power: NodePower | None = None, gpus: int = 8, kind: str = "V100", cpus: int = 0
    ) -> PowerByState:
        """Return the power of a node with these GPUs by `rlsched.models.power`; most figures are assumed.

        Args:
            power: Power of the node without its GPUs; default: the defaults of `NodePower`.
            gpus: Number of GPUs.
            kind: Type of the GPUs, a name in `GPU_FIGURES`.
            cpus: Number of cores, 0 if unknown.
        """
        from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
        from rlsched.models.power import NodePower

        power = power or NodePower()
        gpu_idle_w = GPU_FIGURES[canonical_kind(kind)]["idle_w"].value
        return cls(
            idle_w=power.idle_w(cpus, gpus, gpu_idle_w),
            asleep_w=power.asleep_w,
            boot_w=power.booting_w(cpus, gpus, gpu_idle_w),
            boot_s=power.boot_s,
            shutdown_s=power.shutdown_s,
        )
