"""Simulated GPUs. Their readings are computed from the ranks on them; their names contain «simulated»."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rlsched.cluster.spec import MAX_GPUS_PER_NODE
from rlsched.errors import InputError
from rlsched.models.at_clock import board_w, busy_at, dynamic_w, relative_time, relative_voltage
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
from rlsched_node.gpu.device import GpuError, GpuProcess, GpuReading, GpuReadings, Tenant
from rlsched_node.gpu.truth import SimulatedTruth

SM_CLOCK_IDLE_MHZ = 210
SM_CLOCK_BUSY_MHZ = 1_980
"""Highest SM clock of an H100, used for all types. A locked clock is a fraction of this clock."""
SM_CLOCK_STEP_MHZ = 15
CPUS_NEAR = 16


class SimulatedGpus:
    """Simulated GPUs of one type. The simulator's models compute their readings from the jobs on them.

    The figures of a GPU type are in `GPU_FIGURES`, the figures of a job's workload in the catalogue. A job
    without a workload gets the median of all workloads. Jobs on a shared GPU together use the fraction 1 -
    product(1 - u) of the time, where u is the utilisation of each job without the others. Each job's part is
    proportional to its u. Values that no model computes are None, such as temperature. The same calls at the
    same times give the same readings.

    Args:
        count: Number of GPUs, 1 to `MAX_GPUS_PER_NODE`.
        node: Name of the node, which is part of the GPUs' UUIDs.
        clock: Function that returns monotonic seconds; energy is integrated with this clock.
        gpu_type: Model of the GPUs.
        truth: Figures that replace the catalogue's figures; None: the catalogue's figures.

    Raises:
        InputError: `count` is out of range.
    """

    kind: Literal["simulated", "nvml", "replayed"] = "simulated"
    note = ""

    def __init__(
        self,
        count: int,
        node: str = "node",
        clock: Callable[[], float] = time.monotonic,
        gpu_type: str = "generic",
        truth: SimulatedTruth | None = None,
    ) -> None:
        if not 1 <= count <= MAX_GPUS_PER_NODE:
            raise InputError(f"--gpus {count}: expected 1 to {MAX_GPUS_PER_NODE} simulated GPUs")
        self._count, self._node, self._clock = count, node, clock
        self._truth = truth or SimulatedTruth()
        self._type = canonical_kind(gpu_type)
        self._figures = {name: figure.value for name, figure in GPU_FIGURES[self._type].items()}
        self._held: dict[int, tuple[Tenant, ...]] = {}
        self._locked_mhz: dict[int, int] = {}
        self._energy_j = [0.0] * count
        self._energy_at_s = clock()
        self._traits: dict[str, dict[str, float]] = {}
        self._power_w = [self._figures["idle_w"]] * count
        self._lock = threading.Lock()  # shared by the daemon and its meter
        self._trait("")  # read the catalogue now; otherwise the first job would wait for it

    @property
    def count(self) -> int:
        return self._count

    def capabilities(self, gpu: int) -> GpuReadings:
        self._check(gpu)
        return GpuReadings(
            memory=True,
            utilisation=True,
            power=True,
            energy=True,
            sm_clock=True,
            processes=True,
            process_utilisation=True,
        )

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
        return int(self._figures["memory_mib"])

    def graphics_memory_mib(self, gpu: int) -> int:  # noqa: ARG002
        return 0

    def memory_used_mib(self, gpu: int) -> int:
        return self.read(gpu).memory_used_mib or 0

    def utilisation_frac(self, gpu: int) -> float:
        return self.read(gpu).utilisation_frac or 0.0

    def power_w(self, gpu: int) -> float:
        self._check(gpu)
        with self._lock:
            return self._power_w[gpu]

    def energy_j(self, gpu: int) -> float:
        self._check(gpu)
        with self._lock:
            self._settle()
            return self._energy_j[gpu]

    def sm_clock_mhz(self, gpu: int) -> int:
        self._check(gpu)
        return self._locked_mhz.get(gpu, SM_CLOCK_BUSY_MHZ) if self._held.get(gpu) else SM_CLOCK_IDLE_MHZ

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        self._check(gpu)
        return list(range(SM_CLOCK_BUSY_MHZ, SM_CLOCK_IDLE_MHZ - 1, -SM_CLOCK_STEP_MHZ))

    def why_clocks_are_fixed(self, gpu: int) -> str:
        self._check(gpu)
        return ""

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        if mhz not in self.sm_clocks_mhz(gpu):
            raise GpuError(f"GPU {gpu}: {mhz} MHz is not one of its SM clocks")
        with self._lock:
            self._settle()
            self._locked_mhz[gpu] = mhz
            self._draw(gpu)

    def reset_sm_clock(self, gpu: int) -> None:
        self._check(gpu)
        with self._lock:
            self._settle()
            self._locked_mhz.pop(gpu, None)
            self._draw(gpu)

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """Return the IDs of simulated processors; several can represent the same real processor."""
        self._check(gpu)
        return frozenset(range(gpu * CPUS_NEAR, (gpu + 1) * CPUS_NEAR))

    def device_minor(self, gpu: int) -> None:
        self._check(gpu)

    def instance_ids(self, gpu: int) -> None:
        self._check(gpu)

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess]:  # noqa: ARG002
        self._check(gpu)
        return []

    def read(self, gpu: int) -> GpuReading:
        self._check(gpu)
        with self._lock:
            self._settle()
            held = self._held.get(gpu, ())
            busy, parts = self._at_work(held, self._clock_frac(gpu))
            processes = tuple(
                GpuProcess(tenant.pid, int(self._trait(tenant.workload)["memory_mib"]), part)
                for tenant, part in zip(held, parts, strict=True)
            )
            return GpuReading(
                utilisation_frac=busy,
                memory_used_mib=min(
                    sum(one.used_mib or 0 for one in processes), int(self._figures["memory_mib"])
                ),
                power_w=self._power_w[gpu],
                energy_j=self._energy_j[gpu],
                sm_clock_mhz=self.sm_clock_mhz(gpu),
                processes=processes,
            )

    def follow(self, held: Mapping[int, Sequence[Tenant]]) -> None:
        for gpu in held:
            self._check(gpu)
        new = {gpu: tuple(tenants) for gpu, tenants in held.items() if tenants}
        with self._lock:
            if new == self._held:
                return
            self._settle()
            self._held = new
            for gpu in range(self._count):
                self._draw(gpu)

    def close(self) -> None:
        """Do nothing."""

    def _trait(self, workload: str) -> dict[str, float]:
        """Return the figures of a workload on this GPU type, by name, from the catalogue and `truth`."""
        found = self._traits.get(workload)
        if found is None:
            from rlsched.models.catalogue.catalogue import load_catalogue  # numpy, only for simulated GPUs

            catalogue = load_catalogue()
            number = catalogue.number(workload) if workload in catalogue.names else 0
            row = catalogue.traits([self._type])[number, 0]
            fields = ("util_frac", "memory_mib", "clock_bound", "dynamic_w")
            found = self._traits[workload] = {field: float(row[field]) for field in fields}
            found |= self._truth.changes(workload)
        return found

    def _clock_frac(self, gpu: int) -> float:
        """Return the SM clock of a GPU with jobs, as a fraction of the highest clock."""
        return self._locked_mhz.get(gpu, SM_CLOCK_BUSY_MHZ) / SM_CLOCK_BUSY_MHZ

    def _alone(self, workload: str, x: float) -> float:
        """Return the fraction of time, 0 to 1, in which a GPU works for a job without co-tenants.

        `x`: SM clock, fraction of the highest clock.
        """
        trait = self._trait(workload)
        return busy_at(trait["util_frac"], relative_time(trait["clock_bound"], x))

    def _at_work(self, held: Sequence[Tenant], x: float) -> tuple[float, list[float]]:
        """Return the fraction of time in which a GPU works, 0 to 1, and each tenant's part of this fraction.

        `x`: SM clock, fraction of the highest clock.
        """
        alone = [self._alone(tenant.workload, x) for tenant in held]
        idle = 1.0
        for one in alone:
            idle *= 1.0 - one
        total = sum(alone)
        parts = [(1.0 - idle) * one / total for one in alone]
        known = self._truth.speeds([tenant.workload for tenant in held])
        if all(speed is None for speed in known):
            return 1.0 - idle, parts
        parts = [
            part if speed is None else speed * one
            for part, speed, one in zip(parts, known, alone, strict=True)
        ]
        return min(sum(parts), 1.0), parts

    def _draw(self, gpu: int) -> None:
        """Recompute the power draw of a GPU."""
        held, figures = self._held.get(gpu, ()), self._figures
        x = self._clock_frac(gpu)
        voltage = relative_voltage(figures["knee_frac"], figures["voltage_slope"], x)
        _, parts = self._at_work(held, x)
        added_w = 0.0
        for tenant, part in zip(held, parts, strict=True):
            trait = self._trait(tenant.workload)
            time = relative_time(trait["clock_bound"], x)
            speed_frac = part / self._alone(tenant.workload, x)
            added_w += dynamic_w(trait["dynamic_w"], figures["theta"], time, voltage, x, speed_frac)
        self._power_w[gpu] = board_w(
            figures["static_w"], figures["idle_w"], figures["tdp_w"], len(held), added_w
        )

    def _check(self, gpu: int) -> None:
        if not 0 <= gpu < self._count:
            raise GpuError(f"GPU {gpu}: expected 0 to {self._count - 1}")

    def _settle(self) -> None:
        """Add to the energy counters the energy that the GPUs have used since the previous call."""
        now_s = self._clock()
        elapsed_s = max(now_s - self._energy_at_s, 0.0)
        self._energy_at_s = now_s
        for gpu in range(self._count):
            self._energy_j[gpu] += elapsed_s * self._power_w[gpu]
