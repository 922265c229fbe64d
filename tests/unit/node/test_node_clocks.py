"""Clocks that a node locks: recorded on disk first, reset after the job and after a crash of the daemon."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlsched_node.clocks import CLOCKS_FILE, ClockLocks, Lock, NodeClocks
from rlsched_node.gpu.device import GpuError, GpuLostError, GpuPermissionError
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes import shim


class Gpus(SimulatedGpus):
    """Three GPUs, or `count`; each call that changes a clock is recorded or refused.

    Attributes:
        done: (call, GPU, MHz), 0 MHz for a reset.
        refusal: Error of setting the clock of `bad`.
        on_disk: Contents of the file at each lock.
    """

    def __init__(self, directory: Path, count: int = 3) -> None:
        super().__init__(count, "n0")
        self.directory = directory
        self.done: list[tuple[int, int]] = []
        self.bad, self.refusal = -1, GpuError("no")
        self.on_disk: list[bytes] = []

    def lock_sm_clock(self, gpu: int, mhz: int) -> None:
        self.on_disk.append((self.directory / CLOCKS_FILE).read_bytes())
        if gpu == self.bad:
            raise self.refusal
        super().lock_sm_clock(gpu, mhz)
        self.done.append((gpu, mhz))

    def reset_sm_clock(self, gpu: int) -> None:
        if gpu == self.bad:
            raise self.refusal
        super().reset_sm_clock(gpu)
        self.done.append((gpu, 0))


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


def test_lock_is_on_disk_before_it_is_set(gpus: Gpus, tmp_path: Path) -> None:
    locks = ClockLocks(tmp_path, gpus)
    assert locks.lock([0, 2], 1560) == Lock(1560)
    assert gpus.done == [(0, 1560), (2, 1560)]
    (first, *_) = gpus.on_disk
    assert msgspec.json.decode(first) == {
        "boot_id": shim.boot_id(),
        "mhz": {"SIMULATED-n0-0": 1560, "SIMULATED-n0-2": 1560},
    }
    assert (locks.lowest_clock_mhz([0, 1]), locks.lowest_clock_mhz([1])) == (1560, 0)
    locks.reset([0, 1])
    assert gpus.done[2:] == [(0, 0)], "a GPU that was never locked here is not changed"
    locks.reset([2])
    assert not (tmp_path / CLOCKS_FILE).exists()


def test_next_daemon_resets_clocks_without_a_job(gpus: Gpus, tmp_path: Path) -> None:
    ClockLocks(tmp_path, gpus).lock([0, 1, 2], 1200)
    gpus.done.clear()
    after_kill = ClockLocks(tmp_path, gpus)
    after_kill.recover(held={1})
    assert gpus.done == [(1, 1200), (0, 0), (2, 0)]
    assert after_kill.lowest_clock_mhz([1]) == 1200
    after_kill.reset([1])
    assert gpus.done[3:] == [(1, 0)]
    ClockLocks(tmp_path, gpus).recover(held=())
    assert len(gpus.done) == 4


def test_clock_of_a_gpu_that_the_next_daemon_does_not_offer_is_reset_by_a_later_one(
    gpus: Gpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ClockLocks(tmp_path, gpus).lock([0, 2], 1200)
    fewer = Gpus(tmp_path, count=2)
    ClockLocks(tmp_path, fewer).recover(held=())
    assert fewer.done == [(0, 0)]
    assert "SIMULATED-n0-2 stays at 1200 MHz" in caplog.text
    gpus.done.clear()
    ClockLocks(tmp_path, gpus).recover(held=())
    assert gpus.done == [(2, 0)]
    assert not (tmp_path / CLOCKS_FILE).exists()


def test_locks_of_an_earlier_boot_are_dropped(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / CLOCKS_FILE).write_text('{"boot_id":"before","mhz":{"SIMULATED-n0-0":1200}}')
    ClockLocks(tmp_path, gpus).recover(held=())
    assert gpus.done == []
    assert not (tmp_path / CLOCKS_FILE).exists()


def test_unreadable_file_resets_all_clocks(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / CLOCKS_FILE).write_bytes(b"\x00\x01")
    locks = ClockLocks(tmp_path, gpus)
    locks.recover(held={1})
    assert gpus.done == [(0, 0), (1, 0), (2, 0)], "the clock of the running job is unknown"
    assert locks.lowest_clock_mhz([1]) == 0


def test_refused_lock_resets_the_other_gpus_and_reports_if_permanent(gpus: Gpus, tmp_path: Path) -> None:
    locks = ClockLocks(tmp_path, gpus)
    gpus.bad, gpus.refusal = 1, GpuPermissionError("Insufficient Permissions")
    assert locks.lock([0, 1], 1560) == Lock(0, "Insufficient Permissions", never=True)
    assert gpus.done == [(0, 1560), (0, 0)]
    assert not (tmp_path / CLOCKS_FILE).exists()
    gpus.refusal = GpuError("Unknown Error")
    assert locks.lock([1], 1560) == Lock(1560, "Unknown Error", never=False), "the lock may still be set"


def test_failed_lock_returns_gpus_to_their_earlier_clock(gpus: Gpus, tmp_path: Path) -> None:
    locks = ClockLocks(tmp_path, gpus)
    locks.lock([0], 1200)
    gpus.bad = 1
    assert locks.lock([0, 1], 1560).note == "no"
    assert gpus.done == [(0, 1200), (0, 1560), (0, 1200)]
    assert locks.lowest_clock_mhz([0]) == 1200


def test_failed_reset_is_retried_by_the_next_daemon(
    gpus: Gpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locks = ClockLocks(tmp_path, gpus)
    locks.lock([0], 1560)
    gpus.bad, gpus.refusal = 0, GpuLostError("GPU is lost")
    locks.reset([0])
    assert "GPU 0 stays at 1560 MHz: GPU is lost" in caplog.text
    gpus.bad = -1
    ClockLocks(tmp_path, gpus).recover(held=())
    assert gpus.done == [(0, 1560), (0, 0)]


def test_full_disk_leaves_clocks_unchanged(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / f"{CLOCKS_FILE}.tmp").mkdir()
    locked = ClockLocks(tmp_path, gpus).lock([0], 1560)
    assert locked.mhz == 0
    assert locked.note.endswith("clocks are not changed")
    assert gpus.done == []


def test_node_offers_the_clocks_that_all_its_gpus_support(gpus: Gpus, tmp_path: Path) -> None:
    clocks = ClockLocks(tmp_path, gpus).supported()
    assert clocks == NodeClocks(SimulatedGpus(1).sm_clocks_mhz(0), "")
    gpus.why_clocks_are_fixed = lambda gpu: "no rights" if gpu == 2 else ""  # type: ignore[method-assign]
    assert ClockLocks(tmp_path, gpus).supported() == NodeClocks([], "GPU 2: no rights")
    assert gpus.done == []
