"""NVIDIA GPUs and MIG instances through NVML. Sets SM clocks on request, and changes no limit or mode.

A board is a physical GPU, which can contain MIG instances.
"""

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
    GpuFullError,
    GpuInUseError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuProcess,
    GpuReading,
    GpuReadings,
    GpuUnavailableError,
    GpuUnfitError,
    Tenant,
)
from rlsched_node.gpu.gpm import Gpm, GpmReading, is_supported
from rlsched_node.gpu.instances import BoardParts, Unit, profile_of, select
from rlsched_node.isolation.limits import numbers

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MIB = 1 << 20
PCIE_EVERY_S = 10.0
"""Seconds between PCIe readings. NVML blocks for 20 ms at each call to count the traffic."""
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
    pynvml.NVML_ERROR_IN_USE: GpuInUseError,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: GpuFullError,
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
    """The GPUs and MIG instances that NVML lists on this machine, or the first `count` of them.

    Calls for a GPU that does not answer, even at the start, raise GpuLostError. Calls for a GPU in MIG mode
    without instances raise GpuUnfitError.

    Args:
        count: Number of GPUs; None: all.
        gpm: Read GPU performance monitoring if the GPUs have it.
        profile: Offer the MIG instances of this profile; "": `select` chooses what the node offers.

    Raises:
        GpuUnavailableError: there is no driver, library or GPU.
        GpuError: NVML cannot be opened, or does not report the number of GPUs.
        InputError: more GPUs are requested than present, or no instance has the profile.
    """

    kind: Literal["simulated", "nvml", "replayed"] = "nvml"

    def __init__(self, count: int | None = None, *, gpm: bool = True, profile: str = "") -> None:
        self._gpm: dict[int, Gpm] = {}
        _twice(_open)
        try:
            present = _twice(count_gpus)
            if present == 0:
                raise GpuUnavailableError("NVML shows no GPU on this machine")
            self._handles: list[Any] = [None] * present
            self._instances: dict[str, Any] = {}
            found = [unit for board in range(present) for unit in self._units_of(board)]
            units, self._profile, self.note = select(found, profile)
            if count is not None and not 1 <= count <= len(units):
                kind = f"{self._profile} instances" if self._profile else "GPUs"
                raise InputError(f"--gpus {count}: expected 1 to {len(units)}, the {kind} of this machine")
            offered = count or len(units)
            self._units = units[:offered]
            self._parts: dict[int, BoardParts] = {}
            self._found = found
            self._uuids: dict[int, str] = {}
            self._names: dict[int, str] = {}
            self._minors: dict[int, int] = {}
            self._totals_mib: dict[int, int] = {}
            self._capabilities: list[GpuReadings | None] = [None] * offered
            self._gpm = {gpu: self._new_gpm(gpu) for gpu in range(offered if gpm else 0)}
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
        return len(self._units)

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
        """Return the type of a GPU. For an instance, this is the board's type with the profile.

        If this node offers instances, a GPU that does not answer gets the same type as the instances.
        """
        name = str(pynvml.nvmlDeviceGetName(self._board(gpu)))
        return f"{name}/{self._profile}" if self._profile else name

    def _handle(self, gpu: int) -> Any:
        """Return NVML's handle of a GPU or of an instance.

        Raises:
            GpuLostError: NVML returns no handle.
            GpuUnfitError: the instance was removed.
        """
        unit = self._units[gpu]
        if not unit.uuid:
            return self._board(gpu)
        if unit.uuid not in self._instances:
            try:
                listed = dict(mig_devices(self._board(gpu)))
            except GpuUnavailableError:
                raise
            except GpuError as error:
                raise GpuLostError(str(error)) from error
            if unit.uuid not in listed:
                raise GpuUnfitError(f"missing: its MIG instance {unit.uuid} was removed")
            self._instances[unit.uuid] = listed[unit.uuid]
        return self._instances[unit.uuid]

    def _board(self, gpu: int) -> Any:
        """Return NVML's handle of a GPU; for an instance, the handle of the GPU that contains it."""
        return self._by_number(self._units[gpu].board)

    def _by_number(self, board: int) -> Any:
        """Return NVML's handle of a board. It is cached, because NVML's index of the board can change."""
        if self._handles[board] is None:
            try:
                self._handles[board] = by_index(board)
            except GpuUnavailableError:
                raise
            except GpuError as error:
                raise GpuLostError(str(error)) from error
        return self._handles[board]

    def _units_of(self, board: int) -> list[Unit]:
        """Return the instances of a board, sorted by GPU instance ID; without instances, the board itself."""
        try:
            has_mig = _twice(self._mig_mode_of, board)
            if not has_mig:
                return [Unit(board, has_mig=False)]
            found = []
            for uuid, handle in _twice(mig_devices, self._by_number(board)):
                at, name = _twice(gpu_instance_id, handle), _twice(_name_of, handle)
                found.append((at, Unit(board, uuid, profile_of(name), has_mig=True)))
            return [unit for _, unit in sorted(found)] or [Unit(board, has_mig=True)]
        except GpuError as error:
            _log.warning("GPU %d: its MIG instances are not known: %s", board, error)
            return [Unit(board)]

    def _mig_mode_of(self, board: int) -> bool:
        try:
            return mig_mode(self._by_number(board))
        except (GpuNotSupportedError, GpuPermissionError):
            return False

    def _refuse_unfit(self, gpu: int) -> None:
        """Check that a GPU is still what this node offers. Admins can turn MIG on or remove instances.

        Raises:
            GpuUnfitError: the GPU has changed.
            GpuLostError, GpuUnavailableError: the GPU does not answer.
        """
        unit, has_mig = self._units[gpu], False
        if unit.uuid:
            handle = self._instances.get(unit.uuid)  # NVML may give the handle to another instance later
            if handle is None or _uuid_or_none(handle) != unit.uuid:
                self._instances.pop(unit.uuid, None)
                self._handle(gpu)
            return
        try:
            has_mig = self._mig_mode_of(unit.board)
        except (GpuLostError, GpuUnavailableError):
            raise
        except GpuError as error:
            _log.debug("GPU %d: %s", gpu, error)
        if has_mig:
            raise GpuUnfitError(
                "in MIG mode, and had no usable instance when this daemon started; create instances "
                "(nvidia-smi mig -cgi) and restart the daemon, or turn MIG off"
            )
        if self._profile:
            raise GpuUnfitError(f"whole, and this node offers MIG instances {self._profile}")

    def _able(self, gpu: int) -> GpuReadings:
        """Return which readings a GPU supports, determined when the GPU first answers.

        Raises:
            GpuLostError, GpuUnavailableError: the GPU does not answer, or does not report its UUID.
        """
        able = self._capabilities[gpu]
        if able is None:
            try:
                self.uuid(gpu)
            except GpuUnavailableError:
                raise
            except GpuError as error:
                raise GpuLostError(str(error)) from error
            self._refuse_unfit(gpu)
            able = self._capabilities[gpu] = self._find_capabilities(gpu)
        return able

    def visible_as(self, gpu: int) -> str:
        """Return the GPU's UUID, not its index: CUDA may number GPUs in another order than NVML."""
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
        return self._part_w(gpu, self._power_mw(gpu) / 1e3) if self._able(gpu).power else None

    def energy_j(self, gpu: int) -> float | None:
        if not self._able(gpu).energy:
            return None
        power_w = self._power_mw(gpu) / 1e3 if self._able(gpu).power else None
        return self._part_j(gpu, self._energy_mj(gpu) / 1e3, power_w)

    def sm_clock_mhz(self, gpu: int) -> int | None:
        return self._sm_clock_mhz(gpu) if self._able(gpu).sm_clock else None

    def _part_w(self, gpu: int, board_w: float) -> float:
        unit = self._units[gpu]
        return self._parts_of(unit.board).power_w(unit.uuid, board_w) if unit.uuid else board_w

    def _part_j(self, gpu: int, counter_j: float, board_w: float | None) -> float:
        unit = self._units[gpu]
        return self._parts_of(unit.board).energy_j(unit.uuid, counter_j, board_w) if unit.uuid else counter_j

    def _parts_of(self, board: int) -> BoardParts:
        if board not in self._parts:
            instances = [unit for unit in self._found if unit.board == board and unit.uuid]
            gpu = next(gpu for gpu, unit in enumerate(self._units) if unit.board == board)
            name = ""
            with contextlib.suppress(GpuError):
                name = self.name(gpu)
            self._parts[board] = BoardParts(instances, name)
        return self._parts[board]

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        try:
            return self._supported_clocks_mhz(gpu)
        except (GpuNotSupportedError, GpuPermissionError):
            return []

    def why_clocks_are_fixed(self, gpu: int) -> str:
        """Return why this process cannot set the GPU's clocks; "" if it can.

        NVML has no query for this permission. The test is a call that needs the same permissions and changes
        nothing: it sets persistence mode to its present value.
        """
        if self._units[gpu].uuid:
            return "a MIG instance shares the clock of its GPU"
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
        """Limit the SM clock to `mhz`. Lower clocks stay allowed, so that an idle GPU can save power."""
        lowest_mhz = min(self._supported_clocks_mhz(gpu), default=mhz)
        pynvml.nvmlDeviceSetGpuLockedClocks(self._handle(gpu), min(lowest_mhz, mhz), mhz)

    @typed_errors
    def reset_sm_clock(self, gpu: int) -> None:
        pynvml.nvmlDeviceResetGpuLockedClocks(self._handle(gpu))

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """Return the processors near a GPU, from NVML; if NVML does not report them, from sysfs."""
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

    def instance_ids(self, gpu: int) -> tuple[int, int] | None:
        if not self._units[gpu].uuid:
            return None
        handle = self._handle(gpu)
        return _twice(gpu_instance_id, handle), _twice(_compute_instance_id, handle)

    @typed_errors
    def _minor(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetMinorNumber(self._board(gpu)))

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
        """Return the processors near a GPU as a bit mask: each integer is the mask of 64 processors."""
        count = -(-(os.cpu_count() or 1) // 64)
        return [int(word) for word in pynvml.nvmlDeviceGetCpuAffinity(self._board(gpu), count)]

    @typed_errors
    def _bus(self, gpu: int) -> str:
        bus = pynvml.nvmlDeviceGetPciInfo(self._board(gpu)).busId
        return bus.decode("ascii") if isinstance(bus, bytes) else str(bus)

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:
        look, able = _Look(), self._able(gpu)
        self._refuse_unfit(gpu)
        found = look.ask(self._processes, gpu, able.processes)
        self._tell(gpu, look)
        if found is None:
            return None
        return [
            GpuProcess(one.pid, None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB)
            for one in found
            if not is_ours(one.pid)
        ]

    def read(self, gpu: int) -> GpuReading:
        """Return all readings. Must run on a separate thread: with a faulty driver, a call may not return."""
        able, now_s, look = self._able(gpu), time.monotonic(), _Look()
        self._refuse_unfit(gpu)
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
        power_w = None if power_mw is None else power_mw / 1e3
        unit = self._units[gpu]
        if unit.uuid and processes is not None:
            self._parts_of(unit.board).note_processes(unit.uuid, bool(processes))
        return GpuReading(
            utilisation_frac=None if utilisation is None else utilisation.gpu / 100.0,
            memory_used_mib=None if memory is None else memory.used // _MIB,
            power_w=None if power_w is None else self._part_w(gpu, power_w),
            energy_j=None if energy_mj is None else self._part_j(gpu, energy_mj / 1e3, power_w),
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
        """Do nothing: the driver of a real GPU lists its processes."""

    def _tell(self, gpu: int, look: _Look) -> None:
        """Log the failed readings; log each error of a GPU only once.

        Raises:
            GpuLostError: no reading succeeded.
        """
        for error in look.errors:
            if (gpu, str(error)) not in self._told:
                self._told.add((gpu, str(error)))
                _log.warning("GPU %d: a reading failed; it is missing until it succeeds: %s", gpu, error)
        if look.errors and not look.is_answered:
            raise GpuLostError(f"no reading succeeded: {look.errors[0]}") from look.errors[0]

    def _working(self, gpu: int, able: GpuReadings, look: _Look) -> tuple[GpuProcess, ...] | None:
        """Return the processes on a GPU, with their memory and utilisation if the driver reports them."""
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
        """Determine which readings a GPU supports. An instance has no utilisation and no PCIe traffic."""
        is_whole = not self._units[gpu].uuid
        return GpuReadings(
            memory=_answers(self._memory, gpu),
            utilisation=is_whole and _answers(self._utilisation, gpu),
            power=_answers(self._power_mw, gpu),
            energy=_answers(self._energy_mj, gpu),
            sm_clock=_answers(self._sm_clock_mhz, gpu),
            processes=_answers(self._processes, gpu),
            process_utilisation=is_whole and _answers(self._process_utilisation, gpu),
            clock_limits=_answers(self._clock_limits, gpu),
            temperature=_answers(self._temperature_c, gpu),
            pcie=is_whole and _answers(functools.partial(self._pcie_mib_s, now_s=0.0), gpu),
            gpm=gpu in self._gpm and self._has_gpm(gpu),
        )

    def _new_gpm(self, gpu: int) -> Gpm:
        board = functools.partial(self._board, gpu)
        if not self._units[gpu].uuid:
            return Gpm(board)
        return Gpm(board, lambda: gpu_instance_id(self._handle(gpu)))

    def _has_gpm(self, gpu: int) -> bool:
        """Return whether the GPU has GPM counters that this process may read."""
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
        return int(pynvml.nvmlDeviceGetPowerUsage(self._board(gpu)))

    @typed_errors
    def _energy_mj(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._board(gpu)))

    @typed_errors
    def _sm_clock_mhz(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetClockInfo(self._board(gpu), pynvml.NVML_CLOCK_SM))

    @typed_errors
    def _supported_clocks_mhz(self, gpu: int) -> list[int]:
        """Return the SM clocks available at the highest memory clock."""
        memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(self._board(gpu)))
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(self._board(gpu), memory_mhz)
        return sorted({int(mhz) for mhz in clocks}, reverse=True)

    @typed_errors
    def _repeat_persistence_mode(self, gpu: int) -> None:
        mode = pynvml.nvmlDeviceGetPersistenceMode(self._handle(gpu))
        pynvml.nvmlDeviceSetPersistenceMode(self._handle(gpu), mode)

    @typed_errors
    def _gpm_supported(self, gpu: int) -> None:
        if not is_supported(self._board(gpu)):
            raise GpuNotSupportedError("the GPU has no GPM counters")

    @typed_errors
    def _counted(self, gpu: int, *, now_s: float) -> GpmReading:
        return self._gpm[gpu].read(now_s)

    @typed_errors
    def _clock_limits(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._board(gpu)))

    @typed_errors
    def _temperature_c(self, gpu: int) -> int:
        return int(pynvml.nvmlDeviceGetTemperature(self._board(gpu), pynvml.NVML_TEMPERATURE_GPU))

    @typed_errors
    def _pcie_mib_s(self, gpu: int, *, now_s: float) -> float:
        """Return the PCIe traffic, sum of both directions, MiB/s; a new value every `PCIE_EVERY_S`."""
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
        """Return the fraction of time in which the GPU worked for each process, 0 to 1, by process ID.

        The fraction is a mean since the last call. Processes without a sample since then are missing.
        """
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

    def graphics_memory_mib(self, gpu: int) -> int:
        found: list[Any] = []
        with contextlib.suppress(pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, GpuError):
            found = list(pynvml.nvmlDeviceGetGraphicsRunningProcesses(self._handle(gpu)))
        return sum((one.usedGpuMemory or 0) // _MIB for one in found)

    def _mps_clients(self, gpu: int) -> list[Any]:
        """Return the processes that are MPS clients, which the driver lists separately; empty on failure."""
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
    """One reading of all values of a GPU. Each value has its own call, which can fail."""

    def __init__(self) -> None:
        self.is_answered = False
        self.errors: list[GpuError] = []

    def ask(self, read: Callable[[int], _T], gpu: int, is_able: bool) -> _T | None:
        """Return one value; None if the GPU does not support it, or the call fails now.

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
def count_gpus() -> int:
    """Return the number of physical GPUs of the machine, without MIG instances. NVML must be open."""
    return int(pynvml.nvmlDeviceGetCount())


@typed_errors
def by_index(gpu: int) -> Any:
    """Return NVML's handle of the GPU with this index."""
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)


@typed_errors
def mig_mode(board: Any) -> bool:
    """Return whether a GPU is in MIG mode now.

    Raises:
        GpuNotSupportedError: the GPU has no MIG mode.
    """
    current, _pending = pynvml.nvmlDeviceGetMigMode(board)
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


@typed_errors
def mig_devices(board: Any) -> list[tuple[str, Any]]:
    """Return (UUID, handle) of each MIG instance of a board. NVML's indices can have gaps."""
    found = []
    for index in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(board))):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        found.append((str(pynvml.nvmlDeviceGetUUID(handle)), handle))
    return found


@typed_errors
def gpu_instance_id(handle: Any) -> int:
    """Return the ID of the GPU instance that contains a MIG device."""
    return int(pynvml.nvmlDeviceGetGpuInstanceId(handle))


@typed_errors
def _compute_instance_id(handle: Any) -> int:
    """Return the ID of the compute instance of a MIG device."""
    return int(pynvml.nvmlDeviceGetComputeInstanceId(handle))


@typed_errors
def _name_of(handle: Any) -> str:
    return str(pynvml.nvmlDeviceGetName(handle))


def _uuid_or_none(handle: Any) -> str | None:
    """Return the UUID for an instance's handle; None if the handle has become invalid.

    Raises:
        GpuLostError, GpuUnavailableError: the GPU does not answer.
    """
    try:
        return str(typed_errors(pynvml.nvmlDeviceGetUUID)(handle))
    except (GpuLostError, GpuUnavailableError):
        raise
    except GpuError:
        return None


def _twice(ask: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function. If that fails, call it again, unless the call is not supported or not permitted.

    Raises:
        GpuError: the call failed twice, or is not supported or not permitted.
    """
    try:
        return ask(*args, **kwargs)
    except (GpuNotSupportedError, GpuPermissionError):
        raise
    except GpuError:
        return ask(*args, **kwargs)


def _remembered(known: dict[int, _T], ask: Callable[[int], _T], gpu: int) -> _T:
    """Return a constant property of a GPU. The value is cached after the first successful call."""
    if gpu not in known:
        known[gpu] = _twice(ask, gpu)
    return known[gpu]


def _answers(read: Callable[[int], object], gpu: int) -> bool:
    """Return whether this GPU supports and permits a call; True if the call fails for another reason.

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
