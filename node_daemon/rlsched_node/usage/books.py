"""Computes the usage of ranks from the meter's readings of GPUs and processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from rlsched.wire.messages import AttemptKey, RankMetered, RankUsage
from rlsched_node.gpu.device import GpuProcess, GpuReading
from rlsched_node.usage.energy import MOST_W, Board, parts_frac
from rlsched_node.usage.processes import ProcessReading
from rlsched_node.usage.sums import UsageSums

WINDOW_S = 10.0
"""Period over which readings are averaged for one usage report, seconds."""
TOLD_EVERY_S = 60.0
"""Seconds between two reports of a rank whose usage does not change."""
CHANGE_FRAC = 0.05
CHANGE_LEAST = 20
"""Minimum change for which a field is reported, in the unit of the field (2 % of a GPU, 20 MiB, ...). The
change must also exceed a twentieth of the value."""
MOST_GUESSED_S = 2.0
"""Maximum time after the last reading for which a rank's energy is extrapolated from the power, seconds."""


class Place(NamedTuple):
    """GPUs, shim and control group of a rank."""

    gpus: tuple[int, ...]
    pid: int
    """Process ID of the rank's shim."""
    cgroup: str = ""


class Kept(msgspec.Struct):
    """Usage of a rank on disk, so that it outlives the daemon.

    Attributes:
        boot_id: ID of the boot in which counters and times are valid.
        at_s: Time of the record, monotonic seconds.
        cpu_s: CPU time until `at_s`, seconds.
        read_bytes: Bytes read until `at_s`.
        counters_j: Energy counter at `at_s`, J, by GPU index.
        sums: Usage from the rank's start until `at_s`.
    """

    boot_id: str
    at_s: float
    sums: UsageSums
    cpu_s: float | None = None
    read_bytes: int | None = None
    counters_j: dict[int, float] = {}


class _RankAccount:
    """The usage of one rank, and the readings from which it is computed.

    Attributes:
        window: Usage in the present period of `WINDOW_S`.
        whole: Usage in all earlier periods.
        seen: Last reading of the rank's processes.
        seen_s: Time of the reading `seen`, monotonic seconds.
        cpu_s: CPU time at `seen_s`, seconds; None: unknown, because an earlier daemon started the rank.
        kept_j: Energy counters that an earlier daemon stored last, J, by GPU index.
        kept_s: Time of the counters in `kept_j`, monotonic seconds.
    """

    def __init__(self, place: Place, now_s: float, kept: Kept | None, *, is_new: bool) -> None:
        self.place, self.begun_s = place, now_s
        self.window, self.whole = UsageSums(), UsageSums() if kept is None else kept.sums
        self.seen: ProcessReading | None = None
        self.seen_s, self.read_bytes = now_s, 0
        self.cpu_s: float | None = 0.0 if is_new else None
        self.kept_j: dict[int, float] = {}
        self.kept_s = now_s
        self.window_s = self.told_s = now_s
        self.told: RankUsage | None = None
        self.outside_mps = self.told_outside_mps = False
        self.was_read = False
        if kept is not None:
            self.seen_s = self.kept_s = kept.at_s
            self.kept_j = dict(kept.counters_j)
            self.cpu_s, self.read_bytes = kept.cpu_s, kept.read_bytes or 0

    def usage(self) -> UsageSums:
        """Return the usage since the rank's start."""
        whole = UsageSums()
        whole.add(self.whole)
        whole.highest = dict(self.whole.highest)
        whole.add(self.window)
        return whole


class NodeUsage:
    """The usage of all ranks of one node.

    Args:
        num_gpus: Number of GPUs of the node.
        gpu_type: Name of the GPUs' type, in any spelling that `canonical_kind` accepts.

    Attributes:
        drawn_j: Energy of all GPUs since their first readings, with and without jobs, J.
    """

    def __init__(self, num_gpus: int, gpu_type: str) -> None:
        self._type = gpu_type
        self._boards = [Board() for _ in range(num_gpus)]
        self._last: list[GpuReading | None] = [None] * num_gpus
        self._ranks: dict[AttemptKey, _RankAccount] = {}
        self._silent = False
        self.drawn_j = 0.0

    @property
    def power_w(self) -> float | None:
        """Power of all GPUs at the last reading, W; None if a GPU did not report it."""
        known = [board.power_w for board in self._boards]
        return (
            None
            if None in known or not known or self._silent
            else sum(watts for watts in known if watts is not None)
        )

    def begin(
        self, key: AttemptKey, place: Place, now_s: float, kept: Kept | None = None, *, is_new: bool = True
    ) -> None:
        """Add a rank to the ranks that are read. `kept`: usage that an earlier daemon stored for the rank."""
        self._ranks.setdefault(key, _RankAccount(place, now_s, kept, is_new=is_new))

    def end(self, key: AttemptKey, now_s: float) -> UsageSums | None:
        """Remove an ended rank. Return its usage; None if no usage was read."""
        rank = self._ranks.pop(key, None)
        if rank is None or (not rank.was_read and not rank.whole.measured_s):
            return None
        for gpu in rank.place.gpus:
            self._guess(rank, gpu, now_s)
        return rank.usage()

    def _guess(self, rank: _RankAccount, gpu: int, now_s: float) -> None:
        """Add to a rank the energy since the last reading, estimated from the power at that reading.

        The estimate is deducted from the energy at the next reading.
        """
        board, reading = self._boards[gpu], self._last[gpu]
        if board.at_s is None or board.power_w is None or reading is None or board.at_s < rank.begun_s:
            return
        others = [one for one in self._ranks.values() if gpu in one.place.gpus]
        weights = [_weight(one, reading) for one in (rank, *others)]
        part = parts_frac(board.power_w, weights, self._type)[0]
        guessed_j = board.power_w * part * min(max(now_s - board.at_s, 0.0), MOST_GUESSED_S)
        board.claimed_j += guessed_j
        rank.window.draw(guessed_j)

    def read(
        self,
        now_s: float,
        gpus: Mapping[int, GpuReading | None],
        processes: Mapping[AttemptKey, ProcessReading | None],
    ) -> None:
        """Add one reading of all GPUs and ranks; None: the GPU or rank could not be read."""
        for key, seen in processes.items():
            rank = self._ranks.get(key)
            if rank is not None and seen is not None:
                self._processes(rank, seen, now_s)
        self._silent = None in gpus.values()
        for gpu, reading in gpus.items():
            if reading is not None:
                self._gpu(gpu, reading, now_s)

    def _processes(self, rank: _RankAccount, seen: ProcessReading, now_s: float) -> None:
        lasted_s, before = now_s - rank.seen_s, rank.seen
        if lasted_s <= 0.0:
            return
        rank.was_read = True
        window = rank.window
        window.measured_s += lasted_s
        if rank.cpu_s is not None:
            window.mean("cpu", max(seen.cpu_s - rank.cpu_s, 0.0) / lasted_s, lasted_s)
        window.high("memory_mib", seen.memory_mib)
        if seen.read_bytes is not None:
            window.read_bytes = (window.read_bytes or 0) + max(seen.read_bytes - rank.read_bytes, 0)
            rank.read_bytes = max(seen.read_bytes, rank.read_bytes)
        if seen.io_stall_s is not None and before is not None and before.io_stall_s is not None:
            stalled_s = max(seen.io_stall_s - before.io_stall_s, 0.0)
            window.mean("io_wait", min(stalled_s / lasted_s, 1.0), lasted_s)
        if seen.periods is not None and seen.throttled is not None:
            periods = seen.periods - ((before.periods or 0) if before is not None else 0)
            throttled = seen.throttled - ((before.throttled or 0) if before is not None else 0)
            window.mean("throttled", max(throttled, 0) / periods if periods > 0 else None, lasted_s)
        rank.seen, rank.seen_s, rank.cpu_s = seen, now_s, max(seen.cpu_s, rank.cpu_s or 0.0)

    def _gpu(self, gpu: int, reading: GpuReading, now_s: float) -> None:
        board = self._boards[gpu]
        before_s = board.at_s
        drawn_j = board.drawn_j(now_s, reading.energy_j, reading.power_w)
        self._last[gpu] = reading
        here = [rank for rank in self._ranks.values() if gpu in rank.place.gpus]
        for rank in here:
            began_s = rank.begun_s if before_s is None else max(rank.begun_s, before_s)
            own, rank.was_read = _own(rank, reading), True
            rank.window.gpu(reading, own, alone=len(here) == 1, lasted_s=max(now_s - began_s, 1e-3))
        if before_s is None:
            self._while_nobody_looked(here, gpu, reading, now_s)
        if drawn_j is None or before_s is None:
            return
        self.drawn_j += drawn_j
        left_j, lasted_s = board.unclaimed_j(drawn_j), now_s - before_s
        if not here or lasted_s <= 0.0:
            return
        parts = parts_frac(drawn_j / lasted_s, [_weight(rank, reading) for rank in here], self._type)
        for rank, part in zip(here, parts, strict=True):
            there_frac = min((now_s - max(rank.begun_s, before_s)) / lasted_s, 1.0)
            rank.window.draw(left_j * part * max(there_frac, 0.0))

    @staticmethod
    def _while_nobody_looked(here: list[_RankAccount], gpu: int, reading: GpuReading, now_s: float) -> None:
        """Divide a GPU's energy from the time without a daemon equally among the earlier daemon's ranks."""
        stayed = [rank for rank in here if gpu in rank.kept_j]
        for rank in stayed:
            drawn_j = -1.0 if reading.energy_j is None else reading.energy_j - rank.kept_j.pop(gpu)
            if 0.0 <= drawn_j <= MOST_W * max(now_s - rank.kept_s, 1.0):
                rank.window.draw(drawn_j / len(stayed))

    def news(self, now_s: float) -> list[RankMetered]:
        """Return the usage to report now.

        The usage of a rank is reported every `WINDOW_S` if it changes, else every `TOLD_EVERY_S`.
        """
        told = []
        for key, rank in self._ranks.items():
            if now_s - rank.window_s < WINDOW_S:
                continue
            usage = rank.window.usage()
            rank.whole.add(rank.window)
            rank.window, rank.window_s = UsageSums(), now_s
            is_due = rank.told is None or now_s - rank.told_s >= TOLD_EVERY_S
            has_changed = rank.outside_mps != rank.told_outside_mps
            if is_due or has_changed or rank.told is None or _differs(usage, rank.told):
                rank.told, rank.told_s, rank.told_outside_mps = usage, now_s, rank.outside_mps
                whole_j = rank.whole.energy_j
                energy_mj = None if whole_j is None else round(whole_j * 1e3)
                told.append(
                    RankMetered(
                        job=key.job,
                        attempt=key.attempt,
                        rank=key.rank,
                        usage=usage,
                        energy_mj=energy_mj,
                        outside_mps=rank.outside_mps,
                    )
                )
        return told

    def on_gpus(self) -> dict[AttemptKey, frozenset[int]]:
        """Return the IDs of each rank's processes that were on GPUs at the last reading, without the shim."""
        found = {}
        for key, rank in self._ranks.items():
            readings = [self._last[gpu] for gpu in rank.place.gpus]
            own = [one.pid for reading in readings if reading is not None for one in _own(rank, reading)]
            found[key] = frozenset(own) - {rank.place.pid}
        return found

    def mark_outside_mps(self, outside: Collection[AttemptKey]) -> None:
        """Mark the ranks in `outside` as ranks that should use MPS and do not."""
        for key, rank in self._ranks.items():
            rank.outside_mps = key in outside

    def usage_to_keep(self, boot_id: str, now_s: float) -> dict[AttemptKey, Kept]:
        """Return the usage of each rank, to be stored on disk for the next daemon."""
        counters_j = {gpu: board.counter_j for gpu, board in enumerate(self._boards)}
        return {
            key: Kept(
                boot_id=boot_id,
                at_s=now_s if rank.seen is None else rank.seen_s,
                sums=rank.usage(),
                cpu_s=rank.cpu_s,
                read_bytes=rank.read_bytes,
                counters_j={
                    gpu: counter_j
                    for gpu, counter_j in counters_j.items()
                    if gpu in rank.place.gpus and counter_j is not None
                },
            )
            for key, rank in self._ranks.items()
            if rank.was_read
        }


def _own(rank: _RankAccount, reading: GpuReading) -> list[GpuProcess]:
    pids = rank.seen.pids if rank.seen is not None else frozenset()
    return [one for one in reading.processes or () if one.pid in pids or one.pid == rank.place.pid]


def _weight(rank: _RankAccount, reading: GpuReading) -> float | None:
    """Return the fraction of time in which the GPU worked for a rank, 0 to 1; None if unknown."""
    if reading.processes is None:
        return None
    own = _own(rank, reading)
    if not own and rank.seen is not None and rank.seen.pids:
        return 0.0  # the rank's processes are known, and no process is on the GPU
    shares = [one.utilisation_frac for one in own]
    known = [share for share in shares if share is not None]
    return sum(known) if known and len(known) == len(shares) else None


def _differs(usage: RankUsage, told: RankUsage) -> bool:
    for field in usage.__struct_fields__:
        if field in ("measured_s", "energy_mj", "read_mib"):
            continue
        now, then = getattr(usage, field), getattr(told, field)
        if (now is None) != (then is None):
            return True
        if now is not None and abs(now - then) > max(CHANGE_LEAST, CHANGE_FRAC * max(now, then)):
            return True
    return False
