"""Replay of recorded readings of real GPUs, for machines without GPUs.

A recording is JSON lines. The first line lists the GPUs; each other line is a reading:

    {"form": 1, "gpus": [{"uuid": "GPU-...", "name": "NVIDIA H100", "memory_total_mib": 81559}]}
    {"at_s": 0.0, "gpu": 0, "reading": {"power_w": 71.2, "energy_j": 5120.5, "processes": [[47, 184, 0.9]]}}
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from rlsched.errors import InputError
from rlsched_node.gpu.device import (
    GpuError,
    GpuNotSupportedError,
    GpuProcess,
    GpuReading,
    GpuReadings,
    GpuSet,
    Tenant,
)

_FORM = 1


class _Device(msgspec.Struct, frozen=True):
    uuid: str
    name: str
    memory_total_mib: int | None = None


class _Head(msgspec.Struct, frozen=True):
    form: int
    gpus: list[_Device]


class _RecordedReading(msgspec.Struct, frozen=True):
    at_s: float
    gpu: int
    reading: dict[str, Any]


class Recorder:
    """Recorder of GPU readings, for `rlsched node --record-gpus FILE`.

    Args:
        gpus: GPUs to record.
        path: File to write; an existing file is overwritten.
        clock: Function that returns monotonic seconds.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, gpus: GpuSet, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began_s = clock, clock()
        devices = [_device(gpus, gpu) for gpu in range(gpus.count)]
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        self._write(_Head(_FORM, devices))

    def note(self, gpu: int, reading: GpuReading) -> None:
        """Record one reading of one GPU.

        Raises:
            OSError: the write failed, for example because the disk is full.
        """
        told = {name: value for name, value in reading._asdict().items() if value is not None}
        self._write(_RecordedReading(round(self._clock() - self._began_s, 3), gpu, told))

    def close(self) -> None:
        """Close the recording."""
        self._file.close()

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()


def _device(gpus: GpuSet, gpu: int) -> _Device:
    """Return the properties of a GPU for the recording; UUID and name are "" if the GPU does not answer."""
    try:
        return _Device(gpus.uuid(gpu), gpus.name(gpu), gpus.memory_total_mib(gpu))
    except GpuError:
        return _Device("", "")


class ReplayedGpus:
    """GPUs that replay a recording in a loop. The energy counter grows across repetitions.

    The readings do not depend on the ranks of this node. Clocks cannot be set.

    Args:
        path: Path of the recording.
        clock: Function that returns monotonic seconds.

    Raises:
        InputError: the file cannot be read, or is not a recording.
    """

    kind: Literal["simulated", "nvml", "replayed"] = "replayed"
    note = ""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began_s = clock, clock()
        try:
            lines = path.read_bytes().splitlines()
            head = msgspec.json.decode(lines[0], type=_Head)
            rows = [msgspec.json.decode(line, type=_RecordedReading) for line in lines[1:] if line]
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except (IndexError, msgspec.DecodeError) as error:
            raise InputError(f"{path}: expected a recording of --record-gpus: {error}") from error
        self._devices = head.gpus
        if head.form != _FORM or not self._devices:
            raise InputError(f"{path}: expected a recording of form {_FORM} with at least one GPU")
        self._times_s: list[list[float]] = [[] for _ in self._devices]
        self._rows: list[list[GpuReading]] = [[] for _ in self._devices]
        for number, row in enumerate(rows, start=2):
            if not 0 <= row.gpu < len(self._devices):
                raise InputError(
                    f"{path}, line {number}: got GPU {row.gpu}, expected a number below {len(self._devices)}"
                )
            try:
                unknown = sorted(row.reading.keys() - set(GpuReading._fields))
                if unknown:
                    raise TypeError(f"unknown readings: {', '.join(unknown)}")
                reading = msgspec.convert([row.reading.get(name) for name in GpuReading._fields], GpuReading)
            except (msgspec.ValidationError, TypeError) as error:
                raise InputError(f"{path}, line {number}: {error}") from error
            self._times_s[row.gpu].append(row.at_s)
            self._rows[row.gpu].append(reading)
        for gpu, times_s in enumerate(self._times_s):
            if not times_s or times_s != sorted(times_s):
                raise InputError(f"{path}: expected readings of GPU {gpu}, in ascending order of at_s")

    @property
    def count(self) -> int:
        return len(self._devices)

    def capabilities(self, gpu: int) -> GpuReadings:
        first = self._row(gpu)
        return GpuReadings(
            memory=first.memory_used_mib is not None,
            utilisation=first.utilisation_frac is not None,
            power=first.power_w is not None,
            energy=first.energy_j is not None,
            sm_clock=first.sm_clock_mhz is not None,
            processes=first.processes is not None,
        )

    def uuid(self, gpu: int) -> str:
        return self._device(gpu).uuid

    def name(self, gpu: int) -> str:
        return f"{self._device(gpu).name} (recorded)"

    def visible_as(self, gpu: int) -> str:
        self._device(gpu)
        return str(gpu)

    def memory_total_mib(self, gpu: int) -> int | None:
        return self._device(gpu).memory_total_mib

    def graphics_memory_mib(self, gpu: int) -> int:  # noqa: ARG002
        return 0

    def memory_used_mib(self, gpu: int) -> int | None:
        return self._row(gpu).memory_used_mib

    def utilisation_frac(self, gpu: int) -> float | None:
        return self._row(gpu).utilisation_frac

    def power_w(self, gpu: int) -> float | None:
        return self._row(gpu).power_w

    def energy_j(self, gpu: int) -> float | None:
        return self.read(gpu).energy_j

    def sm_clock_mhz(self, gpu: int) -> int | None:
        return self._row(gpu).sm_clock_mhz

    def sm_clocks_mhz(self, gpu: int) -> list[int]:
        self._device(gpu)
        return []

    def why_clocks_are_fixed(self, gpu: int) -> str:
        self._device(gpu)
        return "these GPUs are a recording"

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        raise GpuNotSupportedError(f"GPU {gpu} is a recording: its clock cannot be set to {mhz} MHz")

    def reset_sm_clock(self, gpu: int) -> None:
        self._device(gpu)

    def device_minor(self, gpu: int) -> int | None:
        """Return None: a recording has no device file."""
        self._device(gpu)
        return None

    def instance_ids(self, gpu: int) -> tuple[int, int] | None:
        """Return None: a recording has no instance on this machine."""
        self._device(gpu)
        return None

    def near_cpus(self, gpu: int) -> frozenset[int]:
        """Return no processors: a recorded GPU is not on a bus of this machine."""
        self._device(gpu)
        return frozenset()

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess] | None:  # noqa: ARG002
        """Return no processes: the recorded processes do not run now."""
        self._device(gpu)
        return []

    def read(self, gpu: int) -> GpuReading:
        row, times_s, rows = self._row(gpu), self._times_s[gpu], self._rows[gpu]
        if row.energy_j is None:
            return row
        last_j, first_j = rows[-1].energy_j, rows[0].energy_j
        a_round_j = 0.0 if last_j is None or first_j is None else max(last_j - first_j, 0.0)
        rounds = int((self._clock() - self._began_s) // self._length_s(times_s))
        return row._replace(energy_j=row.energy_j + rounds * a_round_j)

    def follow(self, held: Mapping[int, Sequence[Tenant]]) -> None:
        """Do nothing: the readings are recorded."""

    def close(self) -> None:
        """Do nothing."""

    def _device(self, gpu: int) -> _Device:
        if not 0 <= gpu < len(self._devices):
            raise GpuError(f"GPU {gpu}: expected 0 to {len(self._devices) - 1}")
        return self._devices[gpu]

    @staticmethod
    def _length_s(times_s: Sequence[float]) -> float:
        return max(times_s[-1] - times_s[0], 1.0)

    def _row(self, gpu: int) -> GpuReading:
        self._device(gpu)
        times_s = self._times_s[gpu]
        at_s = times_s[0] + (self._clock() - self._began_s) % self._length_s(times_s)
        return self._rows[gpu][max(bisect_right(times_s, at_s) - 1, 0)]
