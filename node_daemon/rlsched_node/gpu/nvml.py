"""Real NVIDIA GPUs through NVML. It sets SM clocks where it is told to, and changes no limit or mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal, ParamSpec, TypeVar

import pynvml

from rlsched.errors import InputError
from rlsched_node.gpu.device import (
    Capabilities,
    GpuError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuProcess,
    GpuUnavailableError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MIB = 1 << 20
_ERRORS: dict[int, type[GpuError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: GpuUnavailableError,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: GpuUnavailableError,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: GpuUnavailableError,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: GpuUnavailableError,
    pynvml.NVML_ERROR_NOT_SUPPORTED: GpuNotSupportedError,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: GpuNotSupportedError,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: GpuNotSupportedError,
    pynvml.NVML_ERROR_NO_PERMISSION: GpuPermissionError,
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuLostError,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuLostError,
}


def typed_errors(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Turn NVML's error codes into rlsched's errors; what has no class of its own is a plain GpuError."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except pynvml.NVMLError as error:
            kind = _ERRORS.get(error.value, GpuError)
            raise kind(f"NVML, {function.__name__.lstrip('_')}{args[1:] or ''}: {error}") from error

    return call


class NvmlGpus:
    """The GPUs that NVML shows on this machine, or the first `count` of them.

    Raises:
        GpuUnavailableError: no driver or library, or no GPU.
        InputError: more GPUs are asked for than there are.
    """

    kind: Literal["simulated", "nvml"] = "nvml"

    def __init__(self, count: int | None = None) -> None:
        present = _open()
        try:
            if present == 0:
                raise GpuUnavailableError("NVML shows no GPU on this machine")
            if count is not None and not 1 <= count <= present:
                raise InputError(f"--gpus {count}: this machine has {present} GPUs")
            self._handles = [_handle(gpu) for gpu in range(count or present)]
            self._capabilities = [self._find_capabilities(gpu) for gpu in range(len(self._handles))]
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        return len(self._handles)

    def capabilities(self, gpu: int) -> Capabilities:
        return self._capabilities[gpu]

    @typed_errors
    def uuid(self, gpu: int) -> str:
        return str(pynvml.nvmlDeviceGetUUID(self._handles[gpu]))

    @typed_errors
    def name(self, gpu: int) -> str:
        return str(pynvml.nvmlDeviceGetName(self._handles[gpu]))

    def visible_as(self, gpu: int) -> str:
        """The UUID: CUDA may number devices in another order than NVML."""
        return self.uuid(gpu)

    def memory_total_mib(self, gpu: int) -> int | None:
        return self._memory(gpu).total // _MIB if self._capabilities[gpu].memory else None

    def memory_used_mib(self, gpu: int) -> int | None:
        return self._memory(gpu).used // _MIB if self._capabilities[gpu].memory else None

    def utilisation_frac(self, gpu: int) -> float | None:
        return self._utilisation(gpu).gpu / 100.0 if self._capabilities[gpu].utilisation else None

    def power_w(self, gpu: int) -> float | None:
        return self._power_mw(gpu) / 1e3 if self._capabilities[gpu].power else None

    def energy_j(self, gpu: int) -> float | None:
        return self._energy_mj(gpu) / 1e3 if self._capabilities[gpu].energy else None

    def sm_clock_mhz(self, gpu: int) -> int | None:
        return self._sm_clock_mhz(gpu) if self._capabilities[gpu].sm_clock else None

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        try:
            return self._supported_clocks_mhz(gpu)
        except (GpuNotSupportedError, GpuPermissionError):
            return []

    def why_clocks_are_fixed(self, gpu: int) -> str:
        """By NVML's own answer to a call that needs the same rights and changes nothing.

        That is to give persistence mode the value that it has: NVML offers no question about clocks, and to
        reset them would undo what somebody else has set.
        """
        try:
            self._supported_clocks_mhz(gpu)
            self._repeat_persistence_mode(gpu)
        except GpuPermissionError as error:
            return f"{error}; setting clocks needs root (in a container: CAP_SYS_ADMIN)"
        except GpuNotSupportedError as error:
            return str(error)
        return ""

    @typed_errors
    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        """The lowest clock stays open, so that a GPU without work can rest."""
        lowest_mhz = min(self._supported_clocks_mhz(gpu), default=mhz)
        pynvml.nvmlDeviceSetGpuLockedClocks(self._handles[gpu], min(lowest_mhz, mhz), mhz)

    @typed_errors
    def reset_sm_clock(self, gpu: int) -> None:
        pynvml.nvmlDeviceResetGpuLockedClocks(self._handles[gpu])

    def check(self, gpu: int) -> None:
        """By its memory: a GPU that fell off the bus (Xid 79, say) answers NVML_ERROR_GPU_IS_LOST."""
        self._memory(gpu)

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        if not self._capabilities[gpu].processes:
            return None
        return [
            GpuProcess(found.pid, None if found.usedGpuMemory is None else found.usedGpuMemory // _MIB)
            for found in self._processes(gpu)
            if not is_ours(found.pid)
        ]

    def follow(self, busy: Collection[int]) -> None:
        """A real GPU knows what runs on it."""

    @typed_errors
    def close(self) -> None:
        pynvml.nvmlShutdown()

    def _find_capabilities(self, gpu: int) -> Capabilities:
        return Capabilities(
            memory=_answers(self._memory, gpu),
            utilisation=_answers(self._utilisation, gpu),
            power=_answers(self._power_mw, gpu),
            energy=_answers(self._energy_mj, gpu),
            sm_clock=_answers(self._sm_clock_mhz, gpu),
            processes=_answers(self._processes, gpu),
        )

    @typed_errors
    def _memory(self, gpu: int) -> Any:
        return pynvml.nvmlDeviceGetMemoryInfo(self._handles[gpu])

    @typed_errors
    def _utilisation(self, gpu: int) -> Any:
        return pynvml.nvmlDeviceGetUtilizationRates(self._handles[gpu])

    @typed_errors
    def _power_mw(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetPowerUsage(self._handles[gpu]))

    @typed_errors
    def _energy_mj(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[gpu]))

    @typed_errors
    def _sm_clock_mhz(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetClockInfo(self._handles[gpu], pynvml.NVML_CLOCK_SM))

    @typed_errors
    def _supported_clocks_mhz(self, gpu: int) -> list[int]:
        """At the highest memory clock, which is the one that rlsched leaves in force."""
        memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(self._handles[gpu]))
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(self._handles[gpu], memory_mhz)
        return sorted({int(mhz) for mhz in clocks}, reverse=True)

    @typed_errors
    def _repeat_persistence_mode(self, gpu: int) -> None:
        mode = pynvml.nvmlDeviceGetPersistenceMode(self._handles[gpu])
        pynvml.nvmlDeviceSetPersistenceMode(self._handles[gpu], mode)

    @typed_errors
    def _processes(self, gpu: int) -> list[Any]:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handles[gpu]))


@typed_errors
def _open() -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetCount())


@typed_errors
def _handle(gpu: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)


def _answers(read: Callable[[int], object], gpu: int) -> bool:
    """Whether this GPU knows the call, and we may make it."""
    try:
        read(gpu)
    except (GpuNotSupportedError, GpuPermissionError):
        return False
    return True
