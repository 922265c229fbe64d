"""GPUs out of service: lost or unfit GPUs, and GPUs with memory in use that belongs to no rank.

Such memory belongs to a process that rlsched did not start, or to no process that the driver lists. If a GPU
has less free memory than a job requested, the node reports the free memory to the broker, so that such jobs
get another GPU. If the broker does not accept this report, the GPU is out of service for half a minute.

The meter's thread checks the GPUs once a second, and the daemon before each start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from rlsched.terminal.visible import visible
from rlsched.wire.messages import Holding
from rlsched_node.gpu.device import (
    GpuError,
    GpuLostError,
    GpuProcess,
    GpuReading,
    GpuSet,
    GpuUnavailableError,
    GpuUnfitError,
)
from rlsched_node.processes import shim
from rlsched_node.processes.free_memory import FreeMemory
from rlsched_node.processes.launch import LaunchError, refuse_on_full_gpus

UNLISTED_MIB, UNLISTED_FRAC = 2048, 0.05
"""Limit for unlisted memory (in use, but of no listed process): in MiB, and as a fraction of the GPU's
memory. The larger limit applies. A GPU with more unlisted memory goes out of service. The values are assumed:
the driver itself reserves some hundred MiB."""
UNLISTED_MOST_FRAC = 0.10
"""Upper bound of `UNLISTED_MIB` on small GPUs, as a fraction of the GPU's memory. Placement leaves the same
fraction free on a shared GPU (`rlsched.models.memory.MARGIN_FRAC`)."""
OUT_AFTER_LOOKS = 30
"""A GPU goes out of service after this number of consecutive checks with unlisted memory above the limit. The
driver removes a killed process from the list some seconds before it frees the memory."""
BACK_AFTER_LOOKS = 3
"""Number of consecutive good checks after which a GPU returns to service."""
BACK_AFTER_SHORT_LOOKS = 30
"""Maximum number of checks for which a GPU is out of service because it had too little free memory for a job.
The GPU returns earlier, after `BACK_AFTER_LOOKS` checks, if it has enough free memory for that job."""
_UNLISTED, _SHORT = -1, -2
_VSIZE = 20
"""Index of `vsize` (virtual memory size) in the result of `shim.read_stat`. It is 0 when an exiting process
has freed its memory."""


class _Outage(NamedTuple):
    """Why a GPU is out of service.

    Attributes:
        why: Reason that is shown to users. A lost GPU keeps the first reason during the outage.
        pid: The foreign process; `_UNLISTED`: no process is known; `_SHORT`: a job requested more memory than
            was free; 0: the GPU is lost, or is not the GPU that the node offers.
        good_looks: Number of consecutive good checks up to now.
        short_looks: Number of checks since a job was refused because of too little free memory (`_SHORT`).
        asked_mib: Memory that this job requested, MiB.
    """

    why: str
    pid: int = 0
    good_looks: int = 0
    short_looks: int = 0
    asked_mib: int = 0


class Outages:
    """GPUs of a node that are out of service. Safe to use from several threads.

    Args:
        count: Number of GPUs of the node.
        is_ours: Function that returns whether rlsched started the process with this ID.

    Attributes:
        busy: GPUs that ranks use. `is_read` assumes that all processes on these GPUs belong to the ranks,
            because a rank's processes in a container are children of the container engine. `refuse`, which
            is called before a rank starts, looks for foreign processes on these GPUs too.
        knows_busy: Whether `busy` has been set. False after the daemon's start, if ranks of an earlier daemon
            may run.
    """

    def __init__(self, count: int, is_ours: Callable[[int], bool]) -> None:
        self._count, self._is_ours = count, is_ours
        self.busy, self.knows_busy = frozenset[int](), True
        self._memory = FreeMemory()
        self._out: dict[int, _Outage] = {}
        self._unlisted_looks: dict[int, int] = {}  # by GPU, consecutive checks with too much unlisted memory
        self._own: dict[int, int | None] = {}  # start ticks of processes known to be rlsched's
        self._seen: dict[int, frozenset[int]] = {}  # by GPU, the processes of the last reading
        self._lock = threading.Lock()

    @property
    def holdings(self) -> list[Holding]:
        """GPUs that the broker must not assign, and the reasons.

        Empty if all GPUs are lost: see `all_lost`.
        """
        with self._lock:
            all_lost = self._are_all_lost()
            return [
                Holding(by=outage.why, gpus=[gpu])
                for gpu, outage in sorted(self._out.items())
                if outage.pid or not all_lost
            ]

    @property
    def usable_mib(self) -> dict[int, int]:
        """By GPU: memory that jobs can get, MiB. GPUs that are not included have no limit."""
        with self._lock:
            return self._memory.usable_mib

    @property
    def all_lost(self) -> list[str]:
        """If all GPUs are lost, a reason for each GPU; else empty."""
        with self._lock:
            if not self._are_all_lost():
                return []
            return [f"GPU {gpu} is {outage.why}" for gpu, outage in sorted(self._out.items())]

    def _are_all_lost(self) -> bool:
        return self._count > 0 and sum(not outage.pid for outage in self._out.values()) == self._count

    def is_lost(self, gpu: int, error: GpuError) -> None:
        """Take a GPU out of service, because `error` reports that it is lost or unfit."""
        with self._lock:
            self._take_out(gpu, _why(error), 0)

    def is_read(
        self,
        gpu: int,
        reading: GpuReading | None,
        ours: Container[int] = frozenset(),
        total_mib: int | None = None,
        graphics_mib: Callable[[], int] = lambda: 0,
    ) -> None:
        """Record a reading of a GPU that is not lost.

        Args:
            gpu: Index of the GPU.
            reading: Values of the GPU; None if they could not be read.
            ours: Process IDs of ranks.
            total_mib: Memory of the GPU, MiB; None: unknown.
            graphics_mib: Function that returns the memory of graphics processes on the GPU, MiB.
        """
        processes = (reading.processes if reading is not None else None) or ()
        foreign = [] if gpu in self.busy else self._foreign(gpu, processes, ours)
        unlisted_mib = self._too_much_unlisted_mib(gpu, reading, total_mib, graphics_mib)
        with self._lock:
            self._seen[gpu] = frozenset(one.pid for one in processes)
            outage = self._out.get(gpu)
            if foreign:
                known = {one.pid for one in foreign}
                if outage is None or outage.pid not in known:
                    self._take_out(gpu, _in_words(foreign), foreign[0].pid)
                else:
                    self._out[gpu] = outage._replace(good_looks=0)
            elif unlisted_mib and (outage is None or outage.pid != _UNLISTED):
                why = f"short of memory: {unlisted_mib} MiB are in use by no process that the driver lists"
                self._take_out(gpu, why, _UNLISTED)
            elif unlisted_mib and outage is not None:
                self._out[gpu] = outage._replace(good_looks=0)
            elif outage is not None and outage.pid == _SHORT:
                self._look_again(gpu, outage, reading, total_mib)
            elif outage is not None and (outage.pid != _UNLISTED or _has_memory(reading)):
                self._out[gpu] = outage._replace(good_looks=outage.good_looks + 1)
                if self._out[gpu].good_looks >= BACK_AFTER_LOOKS:
                    del self._out[gpu]
            elif outage is None and self.knows_busy and reading is not None and total_mib:
                self._read_memory(gpu, reading, total_mib)

    def _read_memory(self, gpu: int, reading: GpuReading, total_mib: int) -> None:
        """Record how much memory jobs can get on a GPU: all that processes outside the ranks do not use."""
        if reading.memory_used_mib is None:
            return
        free_mib, is_busy = total_mib - reading.memory_used_mib, gpu in self.busy
        if is_busy:
            free_mib += sum(one.used_mib or 0 for one in reading.processes or ())
        self._memory.is_read(gpu, min(max(free_mib, 0), total_mib), total_mib, is_busy=is_busy)

    def _look_again(
        self, gpu: int, outage: _Outage, reading: GpuReading | None, total_mib: int | None
    ) -> None:
        """Record a reading of a GPU that went out of service because a job found too little free memory."""
        used_mib = None if reading is None else reading.memory_used_mib
        is_enough = used_mib is not None and (total_mib or 0) - used_mib >= outage.asked_mib
        good_looks, short_looks = outage.good_looks + 1 if is_enough else 0, outage.short_looks + 1
        self._out[gpu] = outage._replace(good_looks=good_looks, short_looks=short_looks)
        if good_looks >= BACK_AFTER_LOOKS or short_looks >= BACK_AFTER_SHORT_LOOKS:
            del self._out[gpu]

    def look_done(self) -> None:
        """Forget rlsched's processes that are no longer on any GPU. Called after all GPUs were read."""
        with self._lock:
            shown = frozenset[int]().union(*self._seen.values())
            self._own = {pid: ticks for pid, ticks in self._own.items() if pid in shown}

    def refuse(self, gpus: GpuSet, wanted: Sequence[int]) -> None:
        """Check that a rank can start now on the GPUs of its launch order.

        Raises:
            LaunchError: a GPU is lost, its memory is in use by no listed process, or a foreign process uses
                it. The GPU is out of service from now on.
        """
        for gpu in wanted:
            with self._lock:
                outage = self._out.get(gpu)
            if outage is not None and outage.pid in (0, _UNLISTED):
                raise LaunchError(f"GPU {gpu} is {outage.why}", is_for_now=True)
            try:
                foreign = gpus.foreign_processes(gpu, lambda pid, gpu=gpu: not self._is_foreign(gpu, pid))  # type: ignore[misc]
            except (GpuLostError, GpuUnavailableError) as error:
                self.is_lost(gpu, error)
                raise LaunchError(f"GPU {gpu} is {_why(error)}", is_for_now=True) from error
            if foreign:
                with self._lock:
                    self._take_out(gpu, _in_words(foreign), foreign[0].pid)
                raise LaunchError(f"GPU {gpu} is {_in_words(foreign)}", is_for_now=True)

    def refuse_short(
        self,
        gpus: GpuSet,
        wanted: Sequence[int],
        gpu_memory_mib: int,
        *,
        are_shared: bool,
        is_told: bool = False,
    ) -> None:
        """Check that each GPU of a launch order has the free memory that the job requested.

        Args:
            gpus: The node's GPUs.
            wanted: GPUs of the order.
            gpu_memory_mib: Requested memory, MiB per GPU; 0: none.
            are_shared: Whether other jobs run on these GPUs.
            is_told: Whether the broker accepts the message `GpuMemory` with `usable_mib`.

        Raises:
            LaunchError: a GPU has less free memory. If no other jobs run on these GPUs, this method also
                adds the free memory to `usable_mib`, or without `is_told`, takes the GPU out of service.
        """
        first = None
        for gpu in wanted:
            try:
                refuse_on_full_gpus(gpus, [gpu], gpu_memory_mib)
            except LaunchError as error:
                first = first or error
                if not are_shared:
                    self._note_short(gpu, error, gpu_memory_mib, is_told=is_told)
        if first is not None:
            raise first

    def _note_short(self, gpu: int, error: LaunchError, asked_mib: int, *, is_told: bool) -> None:
        with self._lock:
            if is_told and error.free_mib is not None:
                self._memory.is_refused(gpu, error.free_mib, asked_mib)
            elif gpu not in self._out:
                why = str(error).removeprefix(f"GPU {gpu} has ")
                self._out[gpu] = _Outage(f"short of memory: {why}", _SHORT, asked_mib=asked_mib)

    def _take_out(self, gpu: int, why: str, pid: int) -> None:
        outage = self._out.get(gpu)
        if outage is not None and not outage.pid and not pid:
            why = outage.why  # keep the first reason: which call fails first varies between readings
        self._out[gpu] = _Outage(why, pid)

    def _too_much_unlisted_mib(
        self, gpu: int, reading: GpuReading | None, total_mib: int | None, graphics_mib: Callable[[], int]
    ) -> int:
        """Return the memory in use that belongs to no listed process, MiB; 0 if it is not too much.

        It is too much if it has exceeded the limit at `OUT_AFTER_LOOKS` consecutive checks. The result is
        also 0 if the driver does not report the memory of a process, or if ranks use the GPU, because the
        driver may not list processes in a container.
        """
        looks, unlisted_mib = 0, 0
        if gpu not in self.busy and reading is not None and total_mib and reading.memory_used_mib is not None:
            listed = [one.used_mib for one in reading.processes or ()]
            if reading.processes is not None and None not in listed:
                unlisted_mib = reading.memory_used_mib - sum(mib or 0 for mib in listed)
                most_mib = max(min(UNLISTED_MIB, UNLISTED_MOST_FRAC * total_mib), UNLISTED_FRAC * total_mib)
                if unlisted_mib > most_mib and (unlisted_mib := unlisted_mib - graphics_mib()) > most_mib:
                    looks = self._unlisted_looks.get(gpu, 0) + 1
        self._unlisted_looks[gpu] = looks
        return unlisted_mib if looks >= OUT_AFTER_LOOKS else 0

    def _foreign(self, gpu: int, processes: Iterable[GpuProcess], ours: Container[int]) -> list[GpuProcess]:
        return [one for one in processes if self._is_foreign(gpu, one.pid, ours)]

    def _is_foreign(self, gpu: int, pid: int, ours: Container[int] = frozenset()) -> bool:
        """Return whether a process is foreign: not started by rlsched.

        An exiting process is not foreign, although the driver lists it for a while.
        """
        if pid in ours and pid in self._own:
            return False
        fields = shim.read_stat(pid)
        ticks = None if fields is None else int(fields[19])
        with self._lock:
            if pid in self._own and (ticks is None or self._own[pid] == ticks):
                return False
        if pid in ours or self._is_ours(pid):
            with self._lock:
                self._own[pid] = ticks
            return False
        if fields is None:
            return pid in self._seen.get(gpu, ())  # it has ended, or is in another PID namespace
        return fields[0] not in "ZX" and int(fields[_VSIZE]) > 0


def _has_memory(reading: GpuReading | None) -> bool:
    """Return whether a reading contains the memory in use on the GPU, and the processes."""
    return reading is not None and reading.memory_used_mib is not None and reading.processes is not None


def _why(error: GpuError) -> str:
    return str(error) if isinstance(error, GpuUnfitError) else f"lost: {error}"


def _in_words(processes: Sequence[GpuProcess]) -> str:
    first = processes[0]
    facts = [_name(first.pid), "" if first.used_mib is None else f"{first.used_mib} MiB"]
    known = ", ".join(fact for fact in facts if fact)
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    return f"in use by process {first.pid}{f' ({known})' if known else ''}{more}, not started by rlsched"


def _name(pid: int) -> str:
    """Return the kernel's name of a process; "" if it does not exist, or is not readable."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return visible(file.read().strip())
    except OSError:
        return ""
