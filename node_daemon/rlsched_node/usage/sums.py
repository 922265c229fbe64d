"""Sums of readings in a period, and the `RankUsage` computed from them."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages import RankUsage
from rlsched_node.gpu.device import GpuProcess, GpuReading

_SHARES = (
    "gpu",
    "sm_active",
    "sm_occupancy",
    "tensor",
    "dram",
    "power_limited",
    "heat_limited",
    "throttled",
    "io_wait",
    "cpu",
    "shared_gpu",
)
_MEANS = ("sm_clock_mhz", "pcie_mib_s")
_HIGHEST = ("gpu_memory_mib", "temperature_c", "memory_mib")


class UsageSums(msgspec.Struct):
    """Usage of a rank in a period. Consecutive periods can be added.

    Attributes:
        measured_s: Length of the period, seconds.
        sums: By name of the value: (sum of value x weight, sum of the weights). Their ratio is the mean over
            time and GPUs.
        highest: Maximum by name of the value.
        energy_j: Energy, J; None: not measured.
        read_bytes: Bytes read; None: not measured.
    """

    measured_s: float = 0.0
    sums: dict[str, tuple[float, float]] = {}
    highest: dict[str, float] = {}
    energy_j: float | None = None
    read_bytes: int | None = None

    def mean(self, name: str, value: float | None, weight: float) -> None:
        """Add a value to the weighted mean with this name. The weight is usually a duration, seconds."""
        if value is not None and weight > 0.0:
            total, weights = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = total + value * weight, weights + weight

    def high(self, name: str, value: float | None) -> None:
        """Add a value to the maximum with this name."""
        if value is not None:
            self.highest[name] = max(value, self.highest.get(name, value))

    def draw(self, energy_j: float) -> None:
        """Add `energy_j` to the energy of the period."""
        self.energy_j = (self.energy_j or 0.0) + energy_j

    def gpu(self, reading: GpuReading, own: list[GpuProcess], *, alone: bool, lasted_s: float) -> None:
        """Add a reading of a GPU.

        `own`: the rank's processes on the GPU. `alone`: whether no other rank is on the GPU. `lasted_s`:
        seconds since the previous reading.
        """
        used = reading.utilisation_frac
        shares = [one.utilisation_frac for one in own if one.utilisation_frac is not None]
        if not alone and reading.processes is not None and (shares or not own):
            used = min(sum(shares), 1.0)
            self.mean("shared_gpu", used, lasted_s)
        sizes = [one.used_mib for one in own if one.used_mib is not None]
        self.mean("gpu", used, lasted_s)
        self.high("gpu_memory_mib", sum(sizes) if sizes else reading.memory_used_mib if alone else None)
        self.mean("sm_active", reading.sm_active_frac, lasted_s)
        self.mean("sm_occupancy", reading.sm_occupancy_frac, lasted_s)
        self.mean("tensor", reading.tensor_frac, lasted_s)
        self.mean("dram", reading.dram_frac, lasted_s)
        self.mean("sm_clock_mhz", reading.sm_clock_mhz, lasted_s)
        self.mean("power_limited", reading.power_limited, lasted_s)
        self.mean("heat_limited", reading.heat_limited, lasted_s)
        self.mean("pcie_mib_s", reading.pcie_mib_s, lasted_s)
        self.high("temperature_c", reading.temperature_c)

    def add(self, later: UsageSums) -> None:
        """Add the usage of the next period. For `cpu`, the maximum is the highest mean of a single period."""
        self.measured_s += later.measured_s
        for name, (total, weight) in later.sums.items():
            mine = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = mine[0] + total, mine[1] + weight
        for name, value in later.highest.items():
            self.high(name, value)
        if "cpu" in later.sums:
            total, weight = later.sums["cpu"]
            self.high("cpu", total / weight)
        if later.energy_j is not None:
            self.draw(later.energy_j)
        if later.read_bytes is not None:
            self.read_bytes = (self.read_bytes or 0) + later.read_bytes

    def usage(self) -> RankUsage:
        """Return the usage as it is reported to the broker."""
        told = {f"{name}_milli": self._mean(name, 1e3) for name in _SHARES}
        told |= {name: self._mean(name, 1.0) for name in _MEANS}
        told |= {name: _whole(self.highest.get(name)) for name in _HIGHEST}
        high_cpu = self.highest.get("cpu")
        return RankUsage(
            measured_s=round(self.measured_s),
            energy_mj=None if self.energy_j is None else round(self.energy_j * 1e3),
            read_mib=None if self.read_bytes is None else self.read_bytes >> 20,
            cpu_high_milli=told["cpu_milli"] if high_cpu is None else round(high_cpu * 1e3),
            **told,
        )

    def _mean(self, name: str, scale: float) -> int | None:
        total, weight = self.sums.get(name, (0.0, 0.0))
        return round(total / weight * scale) if weight > 0.0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
