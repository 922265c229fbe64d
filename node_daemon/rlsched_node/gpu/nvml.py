"""Real NVIDIA GPUs through NVML. Sets SM clocks on request, and changes no limit or mode."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import pynvml

from rlsched.errors import InputError
from rlsched_node.gpu.device import (
    GpuError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuProcess,
    GpuReading,
    GpuReadings,
    GpuUnavailableError,
    Tenant,
)
from rlsched_node.gpu.gpm import Gpm, GpmReading, is_supported
from rlsched_node.isolation.limits import numbers

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MIB = 1 << 20
PCIE_EVERY_S = 10.0
"""Interval of PCIe readings, seconds: NVML blocks for 20 ms at each call to count the traffic."""
_POWER = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
_HEAT = (
    pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwSlowdown
)
_NONE = GpuReadings(
    memory=False, utilisation=False, power=False, energy=False, sm_clock=False, processes=False
)
_log = logging.getLogger("rlsched.node")
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
    """Turn NVML's error codes into rlsched's errors; a code without its own class becomes a GpuError."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except pynvml.NVMLError as error:
            kind = _ERRORS.get(error.value, GpuError)
            raise kind(f"NVML, {function.__name__.lstrip('_')}{args[1:] or ''}: {error}") from error
        except pynvml.NVMLLibraryMismatchError as error:  # not an NVMLError: the driver lacks the function
            name = f"NVML, {function.__name__.lstrip('_')}{args[1:] or ''}"
            raise GpuNotSupportedError(f"{name}: Function Not Found in this driver") from error

    return call


class NvmlGpus:
    """The GPUs that NVML lists on this machine, or the first `count` of them.

    A GPU that does not answer at the start is included: calls that name it raise GpuLostError until it
    answers. Constant properties of a GPU are queried until it answers, then cached.

    Raises:
        GpuUnavailableError: no driver or library, or no GPU.
        GpuError: NVML cannot be opened, or does not count the GPUs.
        InputError: more GPUs are requested than present.
    """

    kind: Literal["simulated", "nvml", "replayed"] = "nvml"

    def __init__(self, count: int | None = None, *, gpm: bool = True) -> None:
        self._gpm: dict[int, Gpm] = {}
        _twice(_open)
        try:
            present = _twice(_count)
            if present == 0:
                raise GpuUnavailableError("NVML shows no GPU on this machine")
            if count is not None and not 1 <= count <= present:
                raise InputError(f"--gpus {count}: this machine has {present} GPUs")
            offered = count or present
            self._handles: list[Any] = [None] * offered
            self._uuids: dict[int, str] = {}
            self._names: dict[int, str] = {}
            self._minors: dict[int, int] = {}
            self._totals_mib: dict[int, int] = {}
            self._capabilities: list[GpuReadings | None] = [None] * offered
            self._gpm = (
                {gpu: Gpm(functools.partial(self._handle, gpu)) for gpu in range(offered)} if gpm else {}
            )
            self._seen_us = [0] * offered
            self._lacks_mps = False
            self._pcie: dict[int, tuple[float, float]] = {}
            self._told: set[tuple[int, str]] = set()
            for gpu in range(offered):
                with contextlib.suppress(GpuLostError, GpuUnavailableError):  # `read` tries again
                    self._able(gpu)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        return len(self._handles)

    def capabilities(self, gpu: int) -> GpuReadings:
        return self._capabilities[gpu] or _NONE

    def uuid(self, gpu: int) -> str:
        return _remembered(self._uuids, self._uuid, gpu)

    def name(self, gpu: int) -> str:
        return _remembered(self._names, self._name, gpu)

    @typed_errors
    def _uuid(self, gpu: int) -> str:
        return str(pynvml.nvmlDeviceGetUUID(self._handle(gpu)))

    @typed_errors
    def _name(self, gpu: int) -> str:
        return str(pynvml.nvmlDeviceGetName(self._handle(gpu)))

    def _handle(self, gpu: int) -> Any:
        """NVML's handle of a GPU; cached, because the index may mean another GPU later.

        Raises:
            GpuLostError: NVML returns none.
        """
        if self._handles[gpu] is None:
            try:
                self._handles[gpu] = _by_index(gpu)
            except GpuUnavailableError:
                raise
            except GpuError as error:
                raise GpuLostError(str(error)) from error
        return self._handles[gpu]

    def _able(self, gpu: int) -> GpuReadings:
        """Readings that a GPU supports; determined as soon as it answers.

        Raises:
            GpuLostError, GpuUnavailableError: it does not answer, or does not report its UUID.
        """
        able = self._capabilities[gpu]
        if able is None:
            try:
                self.uuid(gpu)
            except GpuUnavailableError:
                raise
            except GpuError as error:
                raise GpuLostError(str(error)) from error
            able = self._capabilities[gpu] = self._find_capabilities(gpu)
        return able

    def visible_as(self, gpu: int) -> str:
        """The UUID: CUDA may number devices in another order than NVML."""
        return self.uuid(gpu)

    def memory_total_mib(self, gpu: int) -> int | None:
        return _remembered(self._totals_mib, self._total_mib, gpu) if self._able(gpu).memory else None

    def _total_mib(self, gpu: int) -> int:
        return int(self._memory(gpu).total // _MIB)

    def memory_used_mib(self, gpu: int) -> int | None:
        return self._memory(gpu).used // _MIB if self._able(gpu).memory else None

    def utilisation_frac(self, gpu: int) -> float | None:
        return self._utilisation(gpu).gpu / 100.0 if self._able(gpu).utilisation else None

    def power_w(self, gpu: int) -> float | None:
        return self._power_mw(gpu) / 1e3 if self._able(gpu).power else None

    def energy_j(self, gpu: int) -> float | None:
        return self._energy_mj(gpu) / 1e3 if self._able(gpu).energy else None

    def sm_clock_mhz(self, gpu: int) -> int | None:
        return self._sm_clock_mhz(gpu) if self._able(gpu).sm_clock else None

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        try:
            return self._supported_clocks_mhz(gpu)
        except (GpuNotSupportedError, GpuPermissionError):
            return []

    def why_clocks_are_fixed(self, gpu: int) -> str:
        """Determined by a call that needs the same rights and changes nothing.

        The call sets persistence mode to its present value. NVML has no query for the right to set clocks,
        and resetting them would undo the setting of another program.
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
        """The lowest clock stays allowed, so that an idle GPU can save power."""
        lowest_mhz = min(self._supported_clocks_mhz(gpu), default=mhz)
        pynvml.nvmlDeviceSetGpuLockedClocks(self._handle(gpu), min(lowest_mhz, mhz), mhz)

    @typed_errors
    def reset_sm_clock(self, gpu: int) -> None:
        pynvml.nvmlDeviceResetGpuLockedClocks(self._handle(gpu))

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """From NVML, else from the PCI bus in sysfs."""
        try:
            words = _twice(self._cpu_affinity, gpu)
        except (GpuNotSupportedError, GpuPermissionError):
            return self._near_by_bus(gpu)
        return frozenset(
            64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1
        )

    def device_minor(self, gpu: int) -> int | None:
        try:
            return _remembered(self._minors, self._minor, gpu)
        except (GpuNotSupportedError, GpuPermissionError):
            return None

    @typed_errors
    def _minor(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetMinorNumber(self._handle(gpu)))

    def _near_by_bus(self, gpu: int) -> frozenset[int]:
        try:
            bus = self._bus(gpu).lower()
            domain, _, rest = bus.partition(":")  # 8 digits here, 4 in sysfs
            path = f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/local_cpulist"
            with open(path, encoding="ascii") as file:
                return numbers(file.read())
        except (GpuError, OSError, ValueError):
            return frozenset()

    @typed_errors
    def _cpu_affinity(self, gpu: int) -> list[int]:
        """Bit mask in words of 64 processors."""
        count = -(-(os.cpu_count() or 1) // 64)
        return [int(word) for word in pynvml.nvmlDeviceGetCpuAffinity(self._handle(gpu), count)]

    @typed_errors
    def _bus(self, gpu: int) -> str:
        bus = pynvml.nvmlDeviceGetPciInfo(self._handle(gpu)).busId
        return bus.decode("ascii") if isinstance(bus, bytes) else str(bus)

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        look = _Look()
        found = look.ask(self._processes, gpu, self._able(gpu).processes)
        self._tell(gpu, look)
        if found is None:
            return None
        return [
            GpuProcess(one.pid, None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB)
            for one in found
            if not is_ours(one.pid)
        ]

    def read(self, gpu: int) -> GpuReading:
        """For a thread of its own: with a faulty driver a call may not return."""
        able, now_s, look = self._able(gpu), time.monotonic(), _Look()
        utilisation = look.ask(self._utilisation, gpu, able.utilisation)
        memory = look.ask(self._memory, gpu, able.memory)
        limits = look.ask(self._clock_limits, gpu, able.clock_limits)
        energy_mj = look.ask(self._energy_mj, gpu, able.energy)
        power_mw = look.ask(self._power_mw, gpu, able.power)
        counted = look.ask(functools.partial(self._counted, now_s=now_s), gpu, able.gpm) or GpmReading()
        pcie_mib_s = counted.pcie_mib_s
        if pcie_mib_s is None:
            pcie_mib_s = look.ask(functools.partial(self._pcie_mib_s, now_s=now_s), gpu, able.pcie)
        sm_clock_mhz = look.ask(self._sm_clock_mhz, gpu, able.sm_clock)
        temperature_c = look.ask(self._temperature_c, gpu, able.temperature)
        processes = self._working(gpu, able, look)
        self._tell(gpu, look)
        return GpuReading(
            utilisation_frac=None if utilisation is None else utilisation.gpu / 100.0,
            memory_used_mib=None if memory is None else memory.used // _MIB,
            power_w=None if power_mw is None else power_mw / 1e3,
            energy_j=None if energy_mj is None else energy_mj / 1e3,
            sm_clock_mhz=sm_clock_mhz,
            power_limited=None if limits is None else bool(limits & _POWER),
            heat_limited=None if limits is None else bool(limits & _HEAT),
            temperature_c=temperature_c,
            pcie_mib_s=pcie_mib_s,
            sm_active_frac=counted.sm_active_frac,
            sm_occupancy_frac=counted.sm_occupancy_frac,
            tensor_frac=counted.tensor_frac,
            dram_frac=counted.dram_frac,
            processes=processes,
        )

    def follow(self, held: Mapping[int, Sequence[Tenant]]) -> None:
        """Does nothing: a real GPU knows its processes."""

    def _tell(self, gpu: int, look: _Look) -> None:
        """Log failed readings, each error of a GPU once.

        Raises:
            GpuLostError: no reading succeeded.
        """
        for error in look.errors:
            if (gpu, str(error)) not in self._told:
                self._told.add((gpu, str(error)))
                _log.warning("GPU %d: a reading failed, and is left out while it does: %s", gpu, error)
        if look.errors and not look.is_answered:
            raise GpuLostError(f"it answers nothing: {look.errors[0]}") from look.errors[0]

    def _working(self, gpu: int, able: GpuReadings, look: _Look) -> tuple[GpuProcess, ...] | None:
        """Processes with their memory and share of time, as far as the driver reports them."""
        found = look.ask(self._processes, gpu, able.processes)
        if found is None:
            return None
        shares = look.ask(self._process_utilisation, gpu, able.process_utilisation)
        return tuple(
            GpuProcess(
                one.pid,
                None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB,
                None if shares is None else shares.get(one.pid, 0.0),
            )
            for one in found
        )

    def close(self) -> None:
        for counters in self._gpm.values():
            with contextlib.suppress(GpuError):
                typed_errors(counters.close)()
        try:
            _shut_down()
        except GpuError as error:
            _log.info("NVML was not closed: %s", error)

    def _find_capabilities(self, gpu: int) -> GpuReadings:
        return GpuReadings(
            memory=_answers(self._memory, gpu),
            utilisation=_answers(self._utilisation, gpu),
            power=_answers(self._power_mw, gpu),
            energy=_answers(self._energy_mj, gpu),
            sm_clock=_answers(self._sm_clock_mhz, gpu),
            processes=_answers(self._processes, gpu),
            process_utilisation=_answers(self._process_utilisation, gpu),
            clock_limits=_answers(self._clock_limits, gpu),
            temperature=_answers(self._temperature_c, gpu),
            pcie=_answers(functools.partial(self._pcie_mib_s, now_s=0.0), gpu),
            gpm=gpu in self._gpm and self._has_gpm(gpu),
        )

    def _has_gpm(self, gpu: int) -> bool:
        """Whether the GPU counts, and permits reading; not on a board that is split into MIG instances."""
        return _answers(self._gpm_supported, gpu) and _answers(
            functools.partial(self._counted, now_s=-1.0), gpu
        )

    @typed_errors
    def _memory(self, gpu: int) -> Any:
        return pynvml.nvmlDeviceGetMemoryInfo(self._handle(gpu))

    @typed_errors
    def _utilisation(self, gpu: int) -> Any:
        return pynvml.nvmlDeviceGetUtilizationRates(self._handle(gpu))

    @typed_errors
    def _power_mw(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetPowerUsage(self._handle(gpu)))

    @typed_errors
    def _energy_mj(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle(gpu)))

    @typed_errors
    def _sm_clock_mhz(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetClockInfo(self._handle(gpu), pynvml.NVML_CLOCK_SM))

    @typed_errors
    def _supported_clocks_mhz(self, gpu: int) -> list[int]:
        """At the highest memory clock, which rlsched leaves in force."""
        memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(self._handle(gpu)))
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(self._handle(gpu), memory_mhz)
        return sorted({int(mhz) for mhz in clocks}, reverse=True)

    @typed_errors
    def _repeat_persistence_mode(self, gpu: int) -> None:
        mode = pynvml.nvmlDeviceGetPersistenceMode(self._handle(gpu))
        pynvml.nvmlDeviceSetPersistenceMode(self._handle(gpu), mode)

    @typed_errors
    def _gpm_supported(self, gpu: int) -> None:
        if not is_supported(self._handle(gpu)):
            raise GpuNotSupportedError("it has no counters")

    @typed_errors
    def _counted(self, gpu: int, *, now_s: float) -> GpmReading:
        return self._gpm[gpu].read(now_s)

    @typed_errors
    def _clock_limits(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle(gpu)))

    @typed_errors
    def _temperature_c(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetTemperature(self._handle(gpu), pynvml.NVML_TEMPERATURE_GPU))

    @typed_errors
    def _pcie_mib_s(self, gpu: int, *, now_s: float) -> float:
        """Both directions; read again after `PCIE_EVERY_S`."""
        at_s, mib_s = self._pcie.get(gpu, (-PCIE_EVERY_S, 0.0))
        if now_s - at_s >= PCIE_EVERY_S:
            kib_s = sum(
                pynvml.nvmlDeviceGetPcieThroughput(self._handle(gpu), counter)
                for counter in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
            )
            mib_s = kib_s / 1024.0
            self._pcie[gpu] = now_s, mib_s
        return mib_s

    @typed_errors
    def _process_utilisation(self, gpu: int) -> dict[int, float]:
        """By process, mean of the samples since the last call; NVML has none if no process ran."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle(gpu), self._seen_us[gpu])
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
                return {}
            raise
        found: dict[int, list[float]] = {}
        for one in samples:
            if one.timeStamp > self._seen_us[gpu]:
                found.setdefault(int(one.pid), []).append(min(one.smUtil, 100) / 100.0)
        self._seen_us[gpu] = max([self._seen_us[gpu], *(int(one.timeStamp) for one in samples)])
        return {pid: sum(shares) / len(shares) for pid, shares in found.items()}

    @typed_errors
    def _processes(self, gpu: int) -> list[Any]:
        found = list(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle(gpu)))
        known = {one.pid for one in found}
        return found + [one for one in self._mps_clients(gpu) if one.pid not in known]

    def _mps_clients(self, gpu: int) -> list[Any]:
        """Clients of MPS, which the driver lists by themselves; none if it lists none or the call fails."""
        try:
            return (
                []
                if self._lacks_mps
                else list(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(self._handle(gpu)))
            )
        except pynvml.NVMLLibraryMismatchError:
            self._lacks_mps = True
        except pynvml.NVMLError as error:
            self._lacks_mps = error.value in (
                pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                pynvml.NVML_ERROR_NOT_SUPPORTED,
            )
        return []


class _Look:
    """One reading of a GPU: calls that may fail independently."""

    def __init__(self) -> None:
        self.is_answered = False
        self.errors: list[GpuError] = []

    def ask(self, read: Callable[[int], _T], gpu: int, is_able: bool) -> _T | None:
        """A reading; None if the GPU does not support it, or if it fails now.

        Raises:
            GpuLostError, GpuUnavailableError: the GPU does not answer.
        """
        if not is_able:
            return None
        try:
            found = read(gpu)
        except (GpuLostError, GpuUnavailableError):
            raise
        except GpuError as error:
            self.errors.append(error)
            return None
        self.is_answered = True
        return found


@typed_errors
def _open() -> None:
    pynvml.nvmlInit()


@typed_errors
def _shut_down() -> None:
    pynvml.nvmlShutdown()


@typed_errors
def _count() -> int:
    return int(pynvml.nvmlDeviceGetCount())


@typed_errors
def _by_index(gpu: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)


def _twice(ask: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call again if the first call failed, unless it is not supported or not permitted.

    Raises:
        GpuError: the second call failed too.
    """
    try:
        return ask(*args, **kwargs)
    except (GpuNotSupportedError, GpuPermissionError):
        raise
    except GpuError:
        return ask(*args, **kwargs)


def _remembered(known: dict[int, _T], ask: Callable[[int], _T], gpu: int) -> _T:
    """A constant property of a GPU, queried until it answers."""
    if gpu not in known:
        known[gpu] = _twice(ask, gpu)
    return known[gpu]


def _answers(read: Callable[[int], object], gpu: int) -> bool:
    """Whether this GPU supports and permits a call; a call that fails otherwise is tried again later.

    Raises:
        GpuLostError, GpuUnavailableError: the GPU does not answer.
    """
    try:
        read(gpu)
    except (GpuNotSupportedError, GpuPermissionError):
        return False
    except (GpuLostError, GpuUnavailableError):
        raise
    except GpuError as error:
        _log.info("GPU %d: %s; retried later", gpu, error)
    return True
