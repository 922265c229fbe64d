"""What the node needs of its GPUs, whoever provides them; None stands for what a GPU cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Collection
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


class GpuProcess(NamedTuple):
    """A process that computes on a GPU; `used_mib` is None where the driver does not say."""

    pid: int
    used_mib: int | None


class GpuSet(Protocol):
    """The GPUs of one node, numbered from 0. Readings are None where `capabilities` says no.

    Every method that names a GPU raises GpuLostError when that GPU is lost, and GpuError otherwise.
    """

    kind: Literal["simulated", "nvml"]

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

    def check(self, gpu: int) -> None:
        """Ask the GPU for something: raises where it is lost. Called by another thread than the rest."""

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        """Processes on the GPU that `is_ours(pid)` disowns."""

    def follow(self, busy: Collection[int]) -> None:
        """These GPUs have a rank on them now. Real GPUs need no telling; simulated ones do."""

    def close(self) -> None:
        """Let go of the driver."""
