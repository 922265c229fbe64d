"""The daemon's part of the meter: selects the ranks to read, and stores their usage on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from rlsched.wire.messages import AttemptKey, Metered
from rlsched_node import records
from rlsched_node.gpu.device import GpuSet, Tenant
from rlsched_node.gpu.replayed import Recorder
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import Event, Exited
from rlsched_node.processes.store import AttemptStore
from rlsched_node.usage.books import Place
from rlsched_node.usage.meter import DayEnergy, Meter, kept_usage

KEEP_EVERY_S = 60.0
"""Seconds between two writes of the usage to disk. If the daemon is killed, means and maxima since the last
write are lost. Energy, CPU time and bytes read are not, because the next daemon gets them from counters."""
DAY_FILE = "energy.json"
_log = logging.getLogger("rlsched.node")


class UsageWatch:
    """Meter of a node's ranks, with their usage on disk.

    Args:
        gpus: The node's GPUs.
        gpu_type: Value of `--gpu-type`.
        store: Attempts on disk.
        directory: The node's directory.
        adopted: Ranks of an earlier daemon.
        record_gpus: File to which GPU readings are recorded; None: no recording.
        is_ours: Function that returns whether rlsched started the process with this ID.
    """

    def __init__(
        self,
        gpus: GpuSet,
        gpu_type: str,
        store: AttemptStore,
        directory: Path,
        adopted: Collection[AttemptKey] = (),
        record_gpus: Path | None = None,
        is_ours: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._gpus, self._store, self._day_file = gpus, store, directory / DAY_FILE
        recorder = None if record_gpus is None else Recorder(gpus, record_gpus)
        self._meter = Meter(gpus, gpu_type, day=self._read_day(), recorder=recorder, is_ours=is_ours)
        self._adopted = set(adopted)
        self._keep_at_s = time.monotonic() + KEEP_EVERY_S
        self._meter.outages.knows_busy = False
        self._meter.look_first()
        self._meter.start()

    def follow(self, live: Iterable[LocalRank]) -> None:
        """Set the ranks that run or are being started. Every `KEEP_EVERY_S`, write their usage to disk."""
        held: dict[int, list[Tenant]] = {}
        known = self._meter.keys
        for attempt in live:
            for gpu in attempt.gpus:
                held.setdefault(gpu, []).append(Tenant(attempt.pid, attempt.workload))
            if attempt.phase is Phase.RUNNING and attempt.key not in known:
                self._begin(attempt)
        self._gpus.follow(held)
        self._meter.outages.busy = frozenset(held)
        self._meter.outages.knows_busy = True
        if time.monotonic() >= self._keep_at_s:
            self._keep_at_s = time.monotonic() + KEEP_EVERY_S
            self.keep()

    def _begin(self, attempt: LocalRank) -> None:
        directory = self._store.directories_of(attempt.key)
        launch = directory.launch()
        place = Place(attempt.gpus, attempt.pid, launch.cgroup if launch is not None else "")
        is_new = attempt.key not in self._adopted
        self._meter.begin(attempt.key, place, None if is_new else directory.usage(), is_new=is_new)

    def add_usage(self, events: Iterable[Event]) -> list[Event]:
        """Return `events`, with the measured usage of the ended rank added to each event `Exited`."""
        return [self._with_usage(event) if isinstance(event, Exited) else event for event in events]

    def _with_usage(self, event: Exited) -> Exited:
        used = self._meter.end(event.key)
        if used is None:
            return event
        self._write(event.key, used)
        return replace(event, usage=kept_usage(used))

    def on_gpus(self) -> dict[AttemptKey, frozenset[int]]:
        """Return the IDs of each rank's processes that were on its GPUs at the last reading."""
        return self._meter.on_gpus()

    def mark_outside_mps(self, outside: Collection[AttemptKey]) -> None:
        """Mark the ranks in `outside` as ranks that should use MPS and do not."""
        self._meter.mark_outside_mps(outside)

    @property
    def gpus(self) -> Meter:
        """The meter of the GPUs. The health checks get the state of the GPUs from it."""
        return self._meter

    def news(self) -> Metered | None:
        """Return the report for the broker; None: nothing to report now."""
        return self._meter.news()

    def keep(self) -> None:
        """Write the usage of the ranks and today's energy to disk, for the next daemon."""
        for key, used in self._meter.usage_to_keep().items():
            self._write(key, used)
        try:
            records.write_whole(str(self._day_file), msgspec.json.encode(self._meter.day()))
        except OSError as error:
            _log.warning("%s: %s: today's energy is remembered in memory only", self._day_file, error)

    def close(self) -> bool:
        """Stop reading. Return False if the meter's thread still waits for a GPU."""
        is_over = self._meter.close()
        self.keep()
        return is_over

    def _write(self, key: AttemptKey, used: bytes) -> None:
        try:
            self._store.directories_of(key).keep_usage(used)
        except OSError as error:
            _log.warning("attempt %s: its usage is remembered in memory only: %s", key, error)

    def _read_day(self) -> DayEnergy | None:
        try:
            return msgspec.json.decode(self._day_file.read_bytes(), type=DayEnergy)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s: today's energy is not known: %s", self._day_file, error)
            return None
