"""Interface to the node's GPUs: real, simulated or replayed. A value that a GPU does not report is None."""

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
    """This GPU, or this driver, does not support the call."""


class GpuPermissionError(GpuError):
    """The call needs permissions that this process does not have."""


class GpuInUseError(GpuError):
    """The call failed, because a process uses the device."""


class GpuFullError(GpuError):
    """The GPU has no room for another MIG instance."""


class GpuLostError(GpuError):
    """The GPU has fallen off the bus or needs a reset: no call to it can succeed."""


class GpuUnfitError(GpuLostError):
    """The GPU answers, but is not the GPU that this node offers.

    The message is the rest of a sentence that begins with «GPU N is».
    """


class GpuReadings(NamedTuple):
    """Which readings a GPU supports, determined once when the GPU first answers."""

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
    """A compute process on a GPU. A value that the driver does not report is None."""

    pid: int
    used_mib: int | None
    utilisation_frac: float | None = None
    """Fraction of recent time in which the GPU worked for the process, 0 to 1."""


class Tenant(NamedTuple):
    """A rank that is assigned to a GPU. Simulated GPUs simulate the load of this rank."""

    pid: int
    workload: str = ""
    """The workload that simulated GPUs simulate; "": unknown."""


class GpuReading(NamedTuple):
    """Readings of one GPU at one time. A value that the GPU does not report is None."""

    utilisation_frac: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    power_limited: bool | None = None
    """Whether a power limit or the external power brake reduces the SM clock."""
    heat_limited: bool | None = None
    """Whether heat, or a slowdown by the hardware (`HwSlowdown` in NVML), reduces the SM clock."""
    temperature_c: int | None = None
    pcie_mib_s: float | None = None
    """PCIe traffic, sum of both directions."""
    sm_active_frac: float | None = None
    """Fraction of the streaming multiprocessors that have work, 0 to 1.

    This field and the next three are means over the time since the previous reading.
    """
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    processes: tuple[GpuProcess, ...] | None = None


class GpuSet(Protocol):
    """The GPUs of one node, with indices from 0. A reading that a GPU does not support is None.

    Every method that takes a GPU index raises GpuLostError if that GPU is lost, and GpuError if the call
    fails for another reason.
    """

    kind: Literal["simulated", "nvml", "replayed"]
    note: str
    """Text that lists the GPUs of the machine that the node does not offer; "": the node offers all."""

    @property
    def count(self) -> int:
        """Number of GPUs; a MIG instance counts as a GPU."""

    def capabilities(self, gpu: int) -> GpuReadings:
        """Return which readings this GPU supports."""

    def uuid(self, gpu: int) -> str:
        """Return a permanent identifier of the device."""

    def name(self, gpu: int) -> str:
        """Return the model of the GPU."""

    def visible_as(self, gpu: int) -> str:
        """Return the entry for the GPU in the job's CUDA_VISIBLE_DEVICES."""

    def memory_total_mib(self, gpu: int) -> int | None:
        """Return the total memory of the device, MiB."""

    def graphics_memory_mib(self, gpu: int) -> int:
        """Return the memory of graphics processes on the device, MiB; 0 if the driver does not report it."""

    def memory_used_mib(self, gpu: int) -> int | None:
        """Return the memory in use by all processes, MiB."""

    def utilisation_frac(self, gpu: int) -> float | None:
        """Return the fraction of the last sampling period in which a kernel ran, 0 to 1."""

    def power_w(self, gpu: int) -> float | None:
        """Return the power draw, W. Ampere and newer GPUs, except GA100, report a mean over one second."""

    def energy_j(self, gpu: int) -> float | None:
        """Return the energy counter: energy since the driver was loaded, J.

        Callers compute differences, and must handle a counter that restarts from 0.
        """

    def sm_clock_mhz(self, gpu: int) -> int | None:
        """Return the clock of the streaming multiprocessors, MHz."""

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        """Return the SM clocks to which the GPU can be locked, MHz, highest first; empty if not reported."""

    def why_clocks_are_fixed(self, gpu: int) -> str:
        """Return why this process cannot set the GPU's clocks; "" if it can. Changes no clock."""

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        """Limit the GPU's SM clock to `mhz`, a value of `sm_clocks_mhz`, until the clock is reset."""

    def reset_sm_clock(self, gpu: int) -> None:
        """Unlock the GPU's SM clock."""

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """Return the IDs of the logical processors that are local to the GPU; empty if unknown."""

    def device_minor(self, gpu: int) -> int | None:
        """Return N of the GPU's device file /dev/nvidiaN; None if there is no such file or N is unknown."""

    def instance_ids(self, gpu: int) -> tuple[int, int] | None:
        """Return (GPU instance ID, compute instance ID) of a MIG instance; None: the GPU is a whole GPU."""

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        """Return the processes on the GPU for which `is_ours(pid)` is false."""

    def read(self, gpu: int) -> GpuReading:
        """Read the GPU, and return all readings; a failed reading is None. The meter's thread calls this."""

    def follow(self, held: Mapping[int, Sequence[Tenant]]) -> None:
        """Set the ranks that run on each GPU now, by GPU index.

        Simulated GPUs compute their readings from these ranks. Other GPUs ignore the call.
        """

    def close(self) -> None:
        """Release the driver."""
