"""Usage by a rank's processes: from its control group (cgroup v2) if it has one, else from `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 1 << 20
_PPID, _UTIME, _STIME, _CUTIME, _CSTIME, _RSS = 1, 11, 12, 13, 14, 21
"""Indices in the fields of `/proc/PID/stat` from the third (the state) on."""
_READ: Final = 1 << 16
READ_EVERY: Final = 5
"""Only one in this number of readings queries how many bytes the processes have read from storage. This query
takes as long as all other queries together."""


class ProcessReading(NamedTuple):
    """Usage of a rank up to now; None for a value that is not counted.

    Attributes:
        cpu_s: CPU time since the rank's start, including ended processes, seconds.
        memory_mib: Resident memory now, MiB: anonymous and shared memory of the control group; without a
            count, the sum over all processes, with shared pages counted several times.
        read_bytes: Bytes read from storage since the rank's start.
        io_stall_s: Time since the rank's start in which at least one process waited for storage, seconds.
        periods: Number of periods of the CPU limit (the control group's `nr_periods`) since the rank's start.
        throttled: Number of these periods in which the CPU limit throttled the rank.
        pids: Processes of the rank.
    """

    cpu_s: float
    memory_mib: int | None
    read_bytes: int | None
    io_stall_s: float | None
    periods: int | None
    throttled: int | None
    pids: frozenset[int]


class RankProcesses:
    """Reader of one rank's usage.

    Args:
        pid: Process ID of the rank's shim, which does not count as a process of the rank.
        cgroup: Directory of the rank's control group; "": the rank has no control group.
    """

    def __init__(self, pid: int, cgroup: str = "") -> None:
        self._pid, self._cgroup = pid, cgroup
        self.pids: frozenset[int] = frozenset()
        self._read_bytes: dict[int, int] = {}
        self._read_before = self._looks = 0

    @property
    def needs_tree(self) -> bool:
        """Whether the rank has no control group, so that `find` must list its processes."""
        return not self._cgroup

    def find(self, children: dict[int, list[int]]) -> None:
        """List the rank's processes: all descendants of the shim."""
        found, left = set[int](), list(children.get(self._pid, ()))
        while left:
            pid = left.pop()
            if pid not in found:
                found.add(pid)
                left += children.get(pid, ())
        self.pids = frozenset(found)

    def read(self) -> ProcessReading | None:
        """Return the usage now; None if the rank has ended."""
        return self._by_cgroup() if self._cgroup else self._by_proc()

    def _by_cgroup(self) -> ProcessReading | None:
        cpu = _keyed(f"{self._cgroup}/cpu.stat")
        if cpu is None or b"usage_usec" not in cpu:
            return None
        self.pids = frozenset(_members(self._cgroup)) - {self._pid}
        memory = _keyed(f"{self._cgroup}/memory.stat")
        return ProcessReading(
            cpu_s=cpu[b"usage_usec"] / 1e6,
            memory_mib=self._resident_mib() if memory is None else _held_bytes(memory) // _MIB,
            read_bytes=self._read_of(_io_read_bytes(self._cgroup)),
            io_stall_s=_stall_s(f"{self._cgroup}/io.pressure"),
            periods=cpu.get(b"nr_periods") or None,
            throttled=cpu.get(b"nr_throttled") if cpu.get(b"nr_periods") else None,
            pids=self.pids,
        )

    def _by_proc(self) -> ProcessReading | None:
        """Return the rank's usage from `/proc`. The shim reaps ended processes: its counters include them."""
        shim = _stat(self._pid)
        if shim is None:
            return None
        ticks, resident = int(shim[_CUTIME]) + int(shim[_CSTIME]), 0
        for pid in self.pids:
            fields = _stat(pid)
            if fields is not None:
                ticks += sum(map(int, fields[_UTIME : _CSTIME + 1]))
                resident += int(fields[_RSS])
        return ProcessReading(
            cpu_s=ticks * _TICK_S,
            memory_mib=resident * _PAGE_BYTES // _MIB,
            read_bytes=self._read_of(None),
            io_stall_s=None,
            periods=None,
            throttled=None,
            pids=self.pids,
        )

    def _resident_mib(self) -> int:
        stats = filter(None, map(_stat, self.pids))
        return sum(int(fields[_RSS]) for fields in stats) * _PAGE_BYTES // _MIB

    def _read_of(self, of_cgroup: int | None) -> int | None:
        """Return the bytes that the rank has read from storage.

        Args:
            of_cgroup: Bytes that the control group has counted; None: add the bytes of the rank's processes.
        """
        if of_cgroup is not None:
            return of_cgroup
        known, self._looks = self._read_bytes, self._looks + 1
        for pid in self.pids if self._looks % READ_EVERY == 1 else ():
            fields = _keyed(f"/proc/{pid}/io", b":")
            if fields is not None and b"read_bytes" in fields:
                known[pid] = fields[b"read_bytes"]
        for pid in known.keys() - self.pids:
            self._read_before += known.pop(pid)
        return self._read_before + sum(known.values()) if known or self._read_before else None


def children_of_all() -> dict[int, list[int]]:
    """Return the children of every process of the machine, by parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(name)
            if fields is not None:
                found.setdefault(int(fields[_PPID]), []).append(int(name))
    return found


def _members(cgroup: str) -> Iterator[int]:
    """Yield the processes of a group and of the groups below it."""
    left = [cgroup]
    while left:
        path = left.pop()
        yield from map(int, (_text(f"{path}/cgroup.procs") or b"").split())
        try:
            with os.scandir(path) as entries:
                left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue


def _text(path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist, or is not readable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _READ)
    except OSError:
        return None
    finally:
        os.close(fd)


def _stat(pid: int | str) -> list[bytes] | None:
    text = _text(f"/proc/{pid}/stat")
    fields = [] if text is None else text.rpartition(b")")[2].split()
    return fields if len(fields) > _RSS else None


def _keyed(path: str, separator: bytes | None = None) -> dict[bytes, int] | None:
    """Return the numbers in a file, by name. Each line of the file is a name, the separator and a number.

    `separator` None: white space. Returns None if the file is not readable.
    """
    text = _text(path)
    if text is None:
        return None
    pairs: Iterable[list[bytes]] = (line.split(separator) for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].strip().isdigit()}


def _held_bytes(memory: dict[bytes, int]) -> int:
    """Return anonymous and shared memory, bytes, from the values in `memory.stat`, without file caches."""
    return memory.get(b"anon", 0) + memory.get(b"shmem", 0)


def _io_read_bytes(cgroup: str) -> int | None:
    text = _text(f"{cgroup}/io.stat")
    if text is None:
        return None
    return sum(int(word[7:]) for word in text.split() if word.startswith(b"rbytes="))


def _stall_s(path: str) -> float | None:
    """Return the total in the line `some avg10=... total=MICROSECONDS` of a file, seconds; None if absent."""
    text = _text(path)
    first = text.split(b"\n", 1)[0] if text else b""
    total = first.rpartition(b"total=")[2]
    return int(total) / 1e6 if first.startswith(b"some") and total.isdigit() else None
