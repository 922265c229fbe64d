"""The meter: reads GPUs and ranks once a second, on its own thread, because a driver may block a call."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from rlsched.wire.messages import AttemptKey, Metered, RankMetered, RankUsage
from rlsched_node.gpu.device import GpuError, GpuLostError, GpuReading, GpuSet, GpuUnavailableError
from rlsched_node.gpu.replayed import Recorder
from rlsched_node.processes import shim
from rlsched_node.processes.outages import Outages
from rlsched_node.usage.books import Kept, NodeUsage, Place
from rlsched_node.usage.processes import RankProcesses, children_of_all

EVERY_S = 1.0
FIND_EVERY_S = 5.0
"""Seconds between two listings of the machine's processes, for ranks without a control group."""
NODE_TOLD_EVERY_S = 10.0
_log = logging.getLogger("rlsched.node")


class DayEnergy(msgspec.Struct, frozen=True):
    """Energy that a node's GPUs used on one day, with and without jobs."""

    day: str = ""
    energy_j: float = 0.0


class Meter:
    """The meter of one node. The methods that the daemon calls never wait for a GPU.

    Args:
        gpus: The node's GPUs.
        gpu_type: Name of the GPUs' type, in any spelling that `canonical_kind` accepts.
        day: Energy that an earlier daemon stored for its last day; None: nothing was stored.
        recorder: Records every reading; None: no recording.
        every_s: Seconds between readings.
        clock: Function that returns monotonic seconds.
        today: Function that returns the date on this machine's clock.
        is_ours: Function that returns whether rlsched started the process with this ID.

    Attributes:
        outages: GPUs that are out of service.
    """

    def __init__(
        self,
        gpus: GpuSet,
        gpu_type: str,
        *,
        day: DayEnergy | None = None,
        recorder: Recorder | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], str] = lambda: time.strftime("%Y-%m-%d"),
        is_ours: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._gpus, self._clock, self._today, self._recorder = gpus, clock, today, recorder
        self._every_s = every_s
        self._books = NodeUsage(gpus.count, _type_of(gpus, gpu_type))
        self._day, self._counted_j = day or DayEnergy(), 0.0
        self._processes: dict[AttemptKey, RankProcesses] = {}
        self._found_s = -math.inf
        self._news: dict[tuple[int, int, int], RankMetered] = {}
        self._told_s = -math.inf
        self.outages = Outages(gpus.count, is_ours)
        self._asked_s: float | None = None
        self._lock = threading.Lock()  # locked while the accounts change, never during a reading
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def look_first(self) -> None:
        """Read once on the caller's thread, so that GPUs out of service are known from the start."""
        try:
            self.read_all()
        except Exception:
            _log.exception("the meter missed its first reading")

    def start(self) -> None:
        """Start the thread, which reads once a second."""
        self._thread.start()

    def close(self) -> bool:
        """Stop reading. Return False if the thread still waits for a GPU."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        if not self._thread.is_alive() and self._recorder is not None:
            self._recorder.close()
        return not self._thread.is_alive()

    # ---- the daemon's side: never waits for a GPU -------------------------------------------------------

    def begin(self, key: AttemptKey, place: Place, kept: bytes | None = None, *, is_new: bool = True) -> None:
        """Add a rank that runs.

        Args:
            key: The rank.
            place: GPUs, shim and control group of the rank.
            kept: The rank's usage that an earlier daemon stored (`usage_to_keep`); None: nothing was stored.
            is_new: This daemon started the rank. If False, an earlier daemon started it.
        """
        before = _kept(kept)
        with self._lock:
            if key not in self._processes:
                self._processes[key] = RankProcesses(place.pid, place.cgroup)
                self._books.begin(key, place, self._clock(), before, is_new=is_new)
                self._found_s = -math.inf

    def end(self, key: AttemptKey) -> bytes | None:
        """Remove an ended rank. Return its usage, encoded for `kept_usage`; None if no usage was read."""
        with self._lock:
            self._processes.pop(key, None)
            now_s = self._clock()
            sums = self._books.end(key, now_s)
        return None if sums is None else msgspec.json.encode(Kept(shim.boot_id(), now_s, sums))

    @property
    def all_lost(self) -> list[str]:
        """If all GPUs are lost, a reason for each GPU; else empty."""
        return self.outages.all_lost

    @property
    def asked_s(self) -> float | None:
        """Start time of the reading in progress, monotonic seconds; None if no reading is in progress."""
        return self._asked_s

    @property
    def power_w(self) -> float | None:
        """Power of all GPUs, W; None if a GPU does not report it."""
        return self._books.power_w

    @property
    def keys(self) -> set[AttemptKey]:
        """Ranks whose usage the meter reads."""
        return set(self._processes)

    def on_gpus(self) -> dict[AttemptKey, frozenset[int]]:
        """Return the IDs of each rank's processes that were on its GPUs at the last reading.

        Empty if the GPUs are simulated or replayed.
        """
        if self._gpus.kind != "nvml":
            return {}
        with self._lock:
            return self._books.on_gpus()

    def mark_outside_mps(self, outside: Collection[AttemptKey]) -> None:
        """Mark the ranks in `outside` as ranks that should use MPS and do not."""
        with self._lock:
            self._books.mark_outside_mps(outside)

    def news(self) -> Metered | None:
        """Return the report for the broker; None: nothing to report now."""
        with self._lock:
            now_s = self._clock()
            if not self._news and now_s - self._told_s < NODE_TOLD_EVERY_S:
                return None
            ranks, self._news, self._told_s = list(self._news.values()), {}, now_s
            day = self._count_day()
            has_energy = self._books.drawn_j > 0.0 or day.energy_j > 0.0
            return Metered(
                ranks=ranks,
                power_w=self._books.power_w,
                day=day.day,
                energy_day_j=round(day.energy_j, 1) if has_energy else None,
            )

    def day(self) -> DayEnergy:
        """Return the energy that the GPUs have used today."""
        with self._lock:
            return self._count_day()

    def usage_to_keep(self) -> dict[AttemptKey, bytes]:
        """Return the usage of each rank, to be stored on disk for the next daemon."""
        with self._lock:
            found = self._books.usage_to_keep(shim.boot_id(), self._clock())
        return {key: msgspec.json.encode(one) for key, one in found.items()}

    def _count_day(self) -> DayEnergy:
        today, drawn_j = self._today(), self._books.drawn_j
        before_j = self._day.energy_j if self._day.day == today else 0.0
        self._day = DayEnergy(today, before_j + drawn_j - self._counted_j)
        self._counted_j = drawn_j
        return self._day

    # ---- the thread's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            began_s = self._clock()
            try:
                self.read_all()
            except Exception:
                _log.exception("the meter missed a reading")
            self._closing.wait(max(self._every_s - (self._clock() - began_s), self._every_s / 10))

    def read_all(self) -> None:
        """Read all GPUs and ranks once, and record the readings."""
        with self._lock:
            ranks = dict(self._processes)
        self._find(ranks)
        seen = {key: processes.read() for key, processes in ranks.items()}
        ours = frozenset[int]().union(*(one.pids for one in seen.values() if one is not None))
        gpus = self._read_all(ours)
        with self._lock:
            now_s = self._clock()
            self._books.read(now_s, gpus, seen)
            for one in self._books.news(now_s):
                self._news[one.job, one.attempt, one.rank] = one  # without a broker, only the latest is kept
        for gpu, reading in gpus.items():
            if self._recorder is not None and reading is not None:
                self._recorder.note(gpu, reading)

    def _find(self, ranks: Mapping[AttemptKey, RankProcesses]) -> None:
        trees = [rank for rank in ranks.values() if rank.needs_tree]
        if trees and self._clock() - self._found_s >= FIND_EVERY_S:
            self._found_s = self._clock()
            children = children_of_all()
            for rank in trees:
                rank.find(children)

    def _read_all(self, ours: frozenset[int]) -> dict[int, GpuReading | None]:
        found = dict[int, GpuReading | None]()
        is_real = self._gpus.kind == "nvml"  # other kinds show no processes of this machine
        self._asked_s = time.monotonic()
        for gpu in range(self._gpus.count):
            found[gpu] = None
            try:
                found[gpu] = self._gpus.read(gpu)
            except (GpuLostError, GpuUnavailableError) as error:
                self.outages.is_lost(gpu, error)
                continue
            except GpuError as error:
                _log.debug("GPU %d: %s", gpu, error)
            graphics_mib = partial(self._gpus.graphics_memory_mib, gpu)
            reading = found[gpu] if is_real else None
            self.outages.is_read(gpu, reading, ours, self._total_mib(gpu), graphics_mib)
        self.outages.look_done()
        self._asked_s = None
        return found

    def _total_mib(self, gpu: int) -> int | None:
        """Return the memory of a GPU, MiB; None if it is unknown now."""
        try:
            return self._gpus.memory_total_mib(gpu)
        except GpuError:
            return None


def _type_of(gpus: GpuSet, gpu_type: str) -> str:
    """Return the GPU type: `gpu_type`, or the driver's name for the GPU if `gpu_type` is `generic`."""
    if gpu_type != "generic" or not gpus.count:
        return gpu_type
    try:
        return gpus.name(0)
    except GpuError:
        return gpu_type


def kept_usage(data: bytes | None) -> RankUsage | None:
    """Return the usage in the stored record `data` of a rank; None: no valid record of this boot."""
    kept = _kept(data)
    return None if kept is None else kept.sums.usage()


def _kept(data: bytes | None) -> Kept | None:
    """Decode the stored usage of a rank; None if it is missing or damaged, or from another boot."""
    if data is None:
        return None
    try:
        kept = msgspec.json.decode(data, type=Kept)
    except msgspec.DecodeError as error:
        _log.warning("the earlier usage of a rank is not known: %s", error)
        return None
    return kept if kept.boot_id == shim.boot_id() else None
