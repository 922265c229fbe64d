"""The meter: looks at GPUs and ranks once a second, on a thread of its own that a driver may hold up."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from rlsched.wire.messages import Metered, RankMetered, RankUsage
from rlsched_node.gpu.device import GpuError, GpuLostError, GpuReading, GpuSet, GpuUnavailableError
from rlsched_node.gpu.replayed import Recorder
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import AttemptKey
from rlsched_node.processes.outages import Outages
from rlsched_node.usage.books import Books, Kept, Place
from rlsched_node.usage.processes import RankProcesses, children_of_all

EVERY_S = 1.0
FIND_EVERY_S = 5.0
"""How often the machine's processes are looked through, where ranks have no control group."""
NODE_TOLD_EVERY_S = 10.0
_log = logging.getLogger("rlsched.node")


class DayEnergy(msgspec.Struct, frozen=True):
    """What the GPUs of a node have drawn on one day, with jobs and without."""

    day: str = ""
    energy_j: float = 0.0


class Meter:
    """One node's. What the daemon calls here never waits for a GPU.

    Args:
        gpus: The node's.
        gpu_type: Any name of their type.
        day: What an earlier daemon had counted.
        recorder: Gets every reading too.
        every_s: How often it looks.
        clock: Monotonic seconds.
        today: The date, by this machine's clock.
        is_ours: Whether rlsched started the process of this number.

    Attributes:
        outages: GPUs that jobs cannot have now.
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
        self._books = Books(gpus.count, _type_of(gpus, gpu_type))
        self._day, self._counted_j = day or DayEnergy(), 0.0
        self._processes: dict[AttemptKey, RankProcesses] = {}
        self._found_s = -math.inf
        self._news: dict[tuple[int, int, int], RankMetered] = {}
        self._told_s = -math.inf
        self.outages = Outages(gpus.count, is_ours)
        self._asked_s: float | None = None
        self._lock = threading.Lock()  # held while books are kept, and never while anything is read
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def look_first(self) -> None:
        """Look once on the caller's thread: which GPUs are out of service is known from the start."""
        try:
            self.look()
        except Exception:
            _log.exception("the meter missed its first look")

    def start(self) -> None:
        """Look once a second from now on."""
        self._thread.start()

    def close(self) -> bool:
        """Look no more: whether the thread has ended, and nothing more is asked of the GPUs."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        if not self._thread.is_alive() and self._recorder is not None:
            self._recorder.close()
        return not self._thread.is_alive()

    # ---- the daemon's side: never waits for a GPU -------------------------------------------------------

    def begin(self, key: AttemptKey, place: Place, kept: bytes | None = None, *, is_new: bool = True) -> None:
        """A rank runs; one that is not new was begun by an earlier daemon, to which `kept()` gave `kept`."""
        before = _kept(kept)
        with self._lock:
            if key not in self._processes:
                self._processes[key] = RankProcesses(place.pid, place.cgroup)
                self._books.begin(key, place, self._clock(), before, is_new=is_new)
                self._found_s = -math.inf

    def end(self, key: AttemptKey) -> bytes | None:
        """A rank is over: what it used, as `kept_usage` reads it; None where it was never looked at."""
        with self._lock:
            self._processes.pop(key, None)
            now_s = self._clock()
            sums = self._books.end(key, now_s)
        return None if sums is None else msgspec.json.encode(Kept(shim.boot_id(), now_s, sums))

    @property
    def all_lost(self) -> list[str]:
        """Why each GPU is lost, where all of them are; empty while one is not."""
        return self.outages.all_lost

    @property
    def asked_s(self) -> float | None:
        """Since when the thread waits for a GPU, monotonic seconds; None: it does not."""
        return self._asked_s

    @property
    def power_w(self) -> float | None:
        """What all GPUs draw, W; None where not all say."""
        return self._books.power_w

    @property
    def keys(self) -> set[AttemptKey]:
        """Ranks that are looked at."""
        return set(self._processes)

    def news(self) -> Metered | None:
        """What the broker is to be told now; None: nothing."""
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
        """What the GPUs have drawn today."""
        with self._lock:
            return self._count_day()

    def kept(self) -> dict[AttemptKey, bytes]:
        """What is to outlive the daemon, of each rank."""
        with self._lock:
            found = self._books.kept(shim.boot_id(), self._clock())
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
                self.look()
            except Exception:
                _log.exception("the meter missed a look")
            self._closing.wait(max(self._every_s - (self._clock() - began_s), self._every_s / 10))

    def look(self) -> None:
        """Read everything once, and write it down."""
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
                self._news[one.job, one.attempt, one.rank] = one  # the latest alone, while no broker listens
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
        is_real = self._gpus.kind == "nvml"  # processes of others are no processes of this machine
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
            self.outages.is_read(gpu, found[gpu] if is_real else None, ours)
        self.outages.look_done()
        self._asked_s = None
        return found


def _type_of(gpus: GpuSet, gpu_type: str) -> str:
    """The node's own word counts; `generic` is none, and then the driver's name does."""
    if gpu_type != "generic" or not gpus.count:
        return gpu_type
    try:
        return gpus.name(0)
    except GpuError:
        return gpu_type


def kept_usage(data: bytes | None) -> RankUsage | None:
    """What a rank had used when that was kept last; None where nobody knows."""
    kept = _kept(data)
    return None if kept is None else kept.sums.usage()


def _kept(data: bytes | None) -> Kept | None:
    """What an earlier daemon kept; None where it is damaged, or of another boot."""
    if data is None:
        return None
    try:
        kept = msgspec.json.decode(data, type=Kept)
    except msgspec.DecodeError as error:
        _log.warning("what a rank used before is not known: %s", error)
        return None
    return kept if kept.boot_id == shim.boot_id() else None
