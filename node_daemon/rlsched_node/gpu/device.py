"""What the node needs of its GPUs, whoever provides them; None stands for what a GPU cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from rlsched.errors import RlschedError


class GpuError(RlschedError):
    """A GPU, or the driver, refused a call."""


class GpuUnavailableError(GpuError):
    """There is no NVIDIA driver or library on this machine."""

    exit_code = 2


class GpuNotSupportedError(GpuError):
    """This GPU, or this driver, does not know the call."""


class GpuPermissionError(GpuError):
    """The call needs more rights than this process has."""


class GpuLostError(GpuError):
    """The GPU has fallen off the bus or needs a reset: no call to it can succeed."""


class Capabilities(NamedTuple):
    """Which readings a GPU gives, found out once at start."""

    memory: bool
    utilisation: bool
    power: bool
    energy: bool
    sm_clock: bool
    processes: bool
    process_utilisation: bool = False
    clock_limits: bool = False
    temperature: bool = False
    pcie: bool = False
    gpm: bool = False
    """GPU performance monitoring (Hopper and newer): multiprocessors, tensor cores, memory bandwidth."""


class GpuProcess(NamedTuple):
    """A process that computes on a GPU; None where the driver does not say."""

    pid: int
    used_mib: int | None
    utilisation_frac: float | None = None
    """Share of the time in which the GPU worked for it, lately."""


class Tenant(NamedTuple):
    """A rank that has a GPU, for devices that are told what runs on them."""

    pid: int
    workload: str = ""
    """A name of the catalogue; "" where nobody gave one."""


class GpuReading(NamedTuple):
    """What one GPU shows at one moment; None where it cannot tell."""

    utilisation_frac: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    power_limited: bool | None = None
    """The SM clock is kept down by a power limit ..."""
    heat_limited: bool | None = None
    """... or by heat, or by the hardware's brake."""
    temperature_c: int | None = None
    pcie_mib_s: float | None = None
    """Both directions."""
    sm_active_frac: float | None = None
    """Since the reading before, as the next three."""
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    processes: tuple[GpuProcess, ...] | None = None


class GpuSet(Protocol):
    """The GPUs of one node, numbered from 0. Readings are None where `capabilities` says no.

    Every method that names a GPU raises GpuLostError when that GPU is lost, and GpuError otherwise.
    """

    kind: Literal["simulated", "nvml", "replayed"]

    @property
    def count(self) -> int:
        """How many GPUs there are."""

    def capabilities(self, gpu: int) -> Capabilities:
        """Which readings this GPU gives."""

    def uuid(self, gpu: int) -> str:
        """A name that stays with the device."""

    def name(self, gpu: int) -> str:
        """The model."""

    def visible_as(self, gpu: int) -> str:
        """How CUDA_VISIBLE_DEVICES names it."""

    def memory_total_mib(self, gpu: int) -> int | None:
        """MiB on the device."""

    def memory_used_mib(self, gpu: int) -> int | None:
        """MiB in use, by whomever."""

    def utilisation_frac(self, gpu: int) -> float | None:
        """Share of the last sampling period in which a kernel ran, 0 to 1."""

    def power_w(self, gpu: int) -> float | None:
        """Power draw in watts (since Ampere, except GA100, a mean over one second)."""

    def energy_j(self, gpu: int) -> float | None:
        """Joules since the driver was loaded: take differences, and expect it to start again from 0."""

    def sm_clock_mhz(self, gpu: int) -> int | None:
        """Clock of the streaming multiprocessors."""

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        """SM clocks that the GPU can be held to, highest first; empty where it does not tell."""

    def why_clocks_are_fixed(self, gpu: int) -> str:
        """Why nobody here can set the GPU's clocks, "" where somebody can. Asking changes no clock."""

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        """Hold the GPU's SM clock to `mhz` at most, one of `sm_clocks_mhz`, until it is reset."""

    def reset_sm_clock(self, gpu: int) -> None:
        """Let the GPU choose its SM clock again."""

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """Numbers of the processors that the GPU hangs on; empty where nobody knows."""

    def device_minor(self, gpu: int) -> int | None:
        """N of the GPU's /dev/nvidiaN; None where it has none, or nobody knows."""

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        """Processes on the GPU that `is_ours(pid)` disowns."""

    def read(self, gpu: int) -> GpuReading:
        """All that it shows now. Called by another thread than the rest; a call of it that fails is None."""

    def follow(self, held: Mapping[int, Sequence[Tenant]]) -> None:
        """These GPUs have ranks on them now. Real GPUs need no telling; simulated ones do."""

    def close(self) -> None:
        """Let go of the driver."""
