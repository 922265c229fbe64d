"""SM clocks locked by this node.

A lock is written to disk before it is set, so that the next daemon can remove it if this daemon crashes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rlsched_node import records
from rlsched_node.gpu.device import GpuError, GpuNotSupportedError, GpuPermissionError, GpuSet
from rlsched_node.processes import shim

CLOCKS_FILE = "clocks.json"
_log = logging.getLogger("rlsched.node")


class _Locked(msgspec.Struct, frozen=True):
    """Content of the file of locked clocks.

    Attributes:
        boot_id: ID of the boot in which the clocks were locked; a reboot unlocks them.
        mhz: Clock to which each GPU is locked, MHz, by UUID of the GPU.
    """

    boot_id: str
    mhz: dict[str, int]


class NodeClocks(NamedTuple):
    """Clocks that a node reports when it registers.

    Attributes:
        sm_clocks_mhz: Clocks to which every GPU of the node can be locked, MHz, highest first.
        note: Why `sm_clocks_mhz` is empty; "" if it is not empty.
    """

    sm_clocks_mhz: list[int]
    note: str


class Lock(NamedTuple):
    """Outcome of an order to lock clocks.

    Attributes:
        mhz: Lowest clock to which the GPUs are locked now, MHz; 0: not locked.
        note: Why the clock differs from the order; "" if it does not differ.
        never: Whether every later order to this node would fail too.
    """

    mhz: int
    note: str = ""
    never: bool = False


class ClockLocks:
    """Locks and unlocks clocks, and unlocks the clocks that a crashed daemon left locked.

    Args:
        directory: The node's directory.
        gpus: The node's GPUs.
    """

    def __init__(self, directory: Path, gpus: GpuSet) -> None:
        self._path, self._gpus = directory / CLOCKS_FILE, gpus
        self._locked: dict[int, int] = {}
        self._absent: dict[str, int] = {}  # clocks of locked GPUs that this daemon cannot reset, MHz by UUID

    def lowest_clock_mhz(self, gpus: Sequence[int]) -> int:
        """Return the lowest of the clocks to which these GPUs are locked, MHz; 0: none of them is locked."""
        return min((self._locked[gpu] for gpu in gpus if gpu in self._locked), default=0)

    def supported(self) -> NodeClocks:
        """Return the clocks that can be set on this node. Queries the GPUs, and changes nothing."""
        common: set[int] | None = None
        failed = ""
        for gpu in range(self._gpus.count):
            try:
                note = self._gpus.why_clocks_are_fixed(gpu)
                clocks = self._gpus.sm_clocks_mhz(gpu)
            except (GpuNotSupportedError, GpuPermissionError) as error:
                note, clocks = str(error), []
            except GpuError as error:
                failed = failed or f"GPU {gpu}: {error}"
                continue
            if note:
                return NodeClocks([], f"GPU {gpu}: {note}")
            common = set(clocks) if common is None else common & set(clocks)
        if not common:
            return NodeClocks([], failed or "its GPUs have no SM clock in common that can be set")
        return NodeClocks(sorted(common, reverse=True), "")

    def recover(self, held: Collection[int]) -> None:
        """Unlock the clocks that an earlier daemon locked for jobs that have ended.

        `held`: GPUs of running jobs. They are locked again to the clocks in the file, because the earlier
        daemon may have been killed before it locked them.
        """
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Locked)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read: %s: the clocks of all GPUs are reset", self._path, error)
            found = _Locked(shim.boot_id(), dict.fromkeys(self._by_uuid(), 0))
        if found.boot_id == shim.boot_id():
            by_uuid = self._by_uuid()
            self._locked = {by_uuid[uuid]: mhz for uuid, mhz in found.mhz.items() if uuid in by_uuid}
            self._absent = {uuid: mhz for uuid, mhz in found.mhz.items() if uuid not in by_uuid}
            for uuid, mhz in self._absent.items():
                _log.warning("%s stays at %d MHz: it does not answer, or is no GPU of this daemon", uuid, mhz)
        kept = {gpu: mhz for gpu, mhz in self._locked.items() if gpu in held and mhz}
        self._lock_again(kept)
        self.reset([gpu for gpu in self._locked if gpu not in kept])

    def lock(self, gpus: Sequence[int], mhz: int) -> Lock:
        """Lock these GPUs to a clock. If a lock fails, all these GPUs return to their previous clocks."""
        before = {gpu: self._locked[gpu] for gpu in gpus if gpu in self._locked}
        try:
            self._write(self._locked | dict.fromkeys(gpus, mhz))
        except OSError as error:
            return Lock(
                self.lowest_clock_mhz(gpus), f"{self._path}: {error.strerror}: clocks are not changed"
            )
        except GpuError as error:
            return Lock(self.lowest_clock_mhz(gpus), str(error))
        self._locked |= dict.fromkeys(gpus, mhz)
        try:
            for gpu in gpus:
                self._gpus.lock_sm_clock(gpu, mhz)
        except GpuError as error:
            never = isinstance(error, GpuPermissionError | GpuNotSupportedError)
            self._lock_again(before)
            self.reset([gpu for gpu in gpus if gpu not in before], quietly=never)
            return Lock(self.lowest_clock_mhz(gpus), str(error), never)
        return Lock(mhz)

    def _lock_again(self, before: Mapping[int, int]) -> None:
        """Restore the locks that were set before a failed call of `lock`, or by an earlier daemon.

        `before`: clocks of the GPUs that were locked before, MHz by GPU index.
        """
        for gpu, mhz in before.items():
            try:
                self._gpus.lock_sm_clock(gpu, mhz)
            except GpuError as error:
                _log.warning("GPU %d may not be at %d MHz: %s", gpu, mhz, error)
        self._locked |= before

    def reset(self, gpus: Sequence[int], *, quietly: bool = False) -> None:
        """Unlock the clocks of these GPUs. GPUs that this node has not locked are not changed.

        If a GPU cannot be unlocked, a warning is logged, and the next daemon tries again. `quietly`: log
        nothing and do not try again, because this process could not lock the GPU either.
        """
        for gpu in [gpu for gpu in gpus if gpu in self._locked]:
            try:
                self._gpus.reset_sm_clock(gpu)
            except GpuError as error:
                if not quietly:
                    _log.warning("GPU %d stays at %d MHz: %s", gpu, self._locked[gpu], error)
                    continue
            del self._locked[gpu]
        try:
            self._write(self._locked)
        except OSError as error:
            _log.warning(
                "%s cannot be written: %s: the next daemon resets these clocks again",
                self._path,
                error.strerror,
            )

    def _by_uuid(self) -> dict[str, int]:
        """Return the GPU indices by UUID, for the GPUs that answer."""
        found = {}
        for gpu in range(self._gpus.count):
            try:
                found[self._gpus.uuid(gpu)] = gpu
            except GpuError as error:
                _log.warning("GPU %d: its clock is not changed: %s", gpu, error)
        return found

    def _write(self, locked: dict[int, int]) -> None:
        by_uuid = self._absent | {self._gpus.uuid(gpu): mhz for gpu, mhz in sorted(locked.items())}
        if not by_uuid:
            self._path.unlink(missing_ok=True)
            return
        data = msgspec.json.encode(_Locked(shim.boot_id(), by_uuid)) + b"\n"
        records.replace_synced(str(self._path), data)
