"""Simulated GPUs: no device behind them, readings that follow the ranks, and names that say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Literal

from rlsched.cluster.spec import MAX_GPUS_PER_NODE
from rlsched.errors import InputError
from rlsched_node.gpu.device import Capabilities, GpuError, GpuProcess

MEMORY_TOTAL_MIB = 81_920
MEMORY_BUSY_MIB = 61_440
UTILISATION_BUSY_FRAC = 0.9
POWER_IDLE_W = 60.0
POWER_BUSY_W = 360.0
SM_CLOCK_IDLE_MHZ = 210
SM_CLOCK_BUSY_MHZ = 1_980
SM_CLOCK_STEP_MHZ = 15


class SimulatedGpus:
    """N GPUs that are alike, each either idle or busy; the figures above are invented, not measured.

    The same calls at the same times give the same readings. A clock that is set is read back, and changes no
    power.

    Args:
        count: Number of GPUs, 1 to `MAX_GPUS_PER_NODE`.
        node: Name of the node, part of the UUIDs.
        clock: Monotonic seconds; energy is integrated along it.

    Raises:
        InputError: `count` is out of range.
    """

    kind: Literal["simulated", "nvml"] = "simulated"

    def __init__(self, count: int, node: str = "node", clock: Callable[[], float] = time.monotonic) -> None:
        if not 1 <= count <= MAX_GPUS_PER_NODE:
            raise InputError(f"--gpus {count}: expected 1 to {MAX_GPUS_PER_NODE} simulated GPUs")
        self._count = count
        self._node = node
        self._clock = clock
        self._busy: frozenset[int] = frozenset()
        self._locked_mhz: dict[int, int] = {}
        self._energy_j = [0.0] * count
        self._energy_at_s = clock()

    @property
    def count(self) -> int:
        return self._count

    def capabilities(self, gpu: int) -> Capabilities:
        self._check(gpu)
        return Capabilities(*([True] * len(Capabilities._fields)))

    def uuid(self, gpu: int) -> str:
        self._check(gpu)
        return f"SIMULATED-{self._node}-{gpu}"

    def name(self, gpu: int) -> str:
        self._check(gpu)
        return "simulated GPU"

    def visible_as(self, gpu: int) -> str:
        self._check(gpu)
        return str(gpu)

    def memory_total_mib(self, gpu: int) -> int:
        self._check(gpu)
        return MEMORY_TOTAL_MIB

    def memory_used_mib(self, gpu: int) -> int:
        return MEMORY_BUSY_MIB if self._is_busy(gpu) else 0

    def utilisation_frac(self, gpu: int) -> float:
        return UTILISATION_BUSY_FRAC if self._is_busy(gpu) else 0.0

    def power_w(self, gpu: int) -> float:
        return POWER_BUSY_W if self._is_busy(gpu) else POWER_IDLE_W

    def energy_j(self, gpu: int) -> float:
        self._check(gpu)
        self._settle()
        return self._energy_j[gpu]

    def sm_clock_mhz(self, gpu: int) -> int:
        busy_mhz = self._locked_mhz.get(gpu, SM_CLOCK_BUSY_MHZ)
        return busy_mhz if self._is_busy(gpu) else SM_CLOCK_IDLE_MHZ

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        self._check(gpu)
        return list(range(SM_CLOCK_BUSY_MHZ, SM_CLOCK_IDLE_MHZ - 1, -SM_CLOCK_STEP_MHZ))

    def why_clocks_are_fixed(self, gpu: int) -> str:
        self._check(gpu)
        return ""

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        if mhz not in self.sm_clocks_mhz(gpu):
            raise GpuError(f"GPU {gpu}: {mhz} MHz is none of its SM clocks")
        self._locked_mhz[gpu] = mhz

    def reset_sm_clock(self, gpu: int) -> None:
        self._check(gpu)
        self._locked_mhz.pop(gpu, None)

    def check(self, gpu: int) -> None:
        self._check(gpu)

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess]:  # noqa: ARG002
        self._check(gpu)
        return []

    def follow(self, busy: Collection[int]) -> None:
        for gpu in busy:
            self._check(gpu)
        self._settle()
        self._busy = frozenset(busy)

    def close(self) -> None:
        """Nothing to let go of."""

    def _is_busy(self, gpu: int) -> bool:
        self._check(gpu)
        return gpu in self._busy

    def _check(self, gpu: int) -> None:
        if not 0 <= gpu < self._count:
            raise GpuError(f"GPU {gpu}: expected 0 to {self._count - 1}")

    def _settle(self) -> None:
        """Integrate power up to now."""
        now_s = self._clock()
        elapsed_s = max(now_s - self._energy_at_s, 0.0)
        self._energy_at_s = now_s
        for gpu in range(self._count):
            self._energy_j[gpu] += elapsed_s * (POWER_BUSY_W if gpu in self._busy else POWER_IDLE_W)
