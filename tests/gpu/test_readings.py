"""Readings of a real GPU against nvidia-smi and against each other."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from rlsched_node.gpu.device import GpuSet
from tests.gpu.conftest import Loads

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpus")]

Smi = Callable[[str], list[list[str]]]
SETTLE_S = 3.0
"""Power is a mean over one second on most GPUs: wait for that, and for the clock to rise."""
COUNTED_S = 8.0
GPM = """
import sys, time
from rlsched_node.gpu.nvml import NvmlGpus
gpus = NvmlGpus()
print("gpm", gpus.capabilities(0).gpm, flush=True)
if gpus.capabilities(0).gpm:
    gpus.read(0)
    time.sleep(1.0)
    reading = gpus.read(0)
    print(reading.sm_active_frac, reading.sm_occupancy_frac, reading.dram_frac)
gpus.close()
"""


def number(cell: str) -> float:
    """A figure of nvidia-smi; skips the test if this GPU has none."""
    try:
        return float(cell)
    except ValueError:
        pytest.skip(f"gpu: nvidia-smi reports {cell} here")


def test_gpus_are_the_ones_of_nvidia_smi(gpus: GpuSet, smi: Smi) -> None:
    rows = smi("uuid,name,memory.total")
    assert [[gpus.uuid(gpu), gpus.name(gpu)] for gpu in range(gpus.count)] == [row[:2] for row in rows]
    for gpu, row in enumerate(rows):
        total = gpus.memory_total_mib(gpu)
        assert total is not None
        assert abs(total - number(row[2])) <= 1


def test_readings_are_the_ones_of_nvidia_smi(gpus: GpuSet, loads: Loads, smi: Smi) -> None:
    loads.start(mib=512)
    time.sleep(SETTLE_S)
    gpus.read(0)  # counts begin here
    time.sleep(1.0)
    mine = gpus.read(0)
    [power, used, reserved, busy, clock, heat] = smi(
        "power.draw,memory.used,memory.reserved,utilization.gpu,clocks.sm,temperature.gpu"
    )[0]
    assert mine.power_w == pytest.approx(number(power), rel=0.1, abs=10.0)
    # NVML's first version of the call counts memory that the driver reserves, nvidia-smi shows it separately
    assert mine.memory_used_mib == pytest.approx(number(used) + number(reserved), abs=64.0)
    assert mine.utilisation_frac == pytest.approx(number(busy) / 100.0, abs=0.15)
    assert mine.sm_clock_mhz == pytest.approx(number(clock), rel=0.05)
    assert mine.temperature_c == pytest.approx(number(heat), abs=3.0)


def test_load_keeps_the_gpu_busy(gpus: GpuSet, loads: Loads) -> None:
    """Without pauses; the other tests rely on it."""
    loads.start()
    time.sleep(SETTLE_S)
    utilisation_frac = gpus.utilisation_frac(0)
    assert utilisation_frac is not None
    assert utilisation_frac > 0.8


def test_energy_counter_is_the_integral_of_power(gpus: GpuSet, loads: Loads) -> None:
    if not gpus.capabilities(0).energy:
        pytest.skip("gpu: this GPU has no energy counter")
    loads.start()
    time.sleep(SETTLE_S)
    powers_w: list[float] = []
    before_j, began_s = gpus.energy_j(0), time.monotonic()
    while time.monotonic() - began_s < COUNTED_S:
        power_w = gpus.power_w(0)
        assert power_w is not None
        powers_w.append(power_w)
        time.sleep(0.1)
    after_j, lasted_s = gpus.energy_j(0), time.monotonic() - began_s
    assert before_j is not None
    assert after_j is not None
    assert after_j - before_j == pytest.approx(statistics.fmean(powers_w) * lasted_s, rel=0.1)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_on_one_gpu_are_told_apart(gpus: GpuSet, loads: Loads, count: int) -> None:
    """Time slicing: each process has its own memory and its own part of the GPU's time."""
    sizes = {loads.start(mib=256 * (number + 1)).pid: 256 * (number + 1) for number in range(count)}
    time.sleep(SETTLE_S)
    gpus.read(0)
    shares: dict[int, list[float]] = {pid: [] for pid in sizes}
    for _ in range(4):
        time.sleep(1.0)
        reading = gpus.read(0)
        assert reading.processes is not None
        found = {one.pid: one for one in reading.processes}
        if not sizes.keys() <= found.keys():
            pytest.skip("gpu: the driver names other process numbers here (another PID namespace)")
        for pid, mib in sizes.items():
            used_mib, share = found[pid].used_mib, found[pid].utilisation_frac
            assert used_mib is None or mib <= used_mib <= mib + 1024, (
                "the memory that it holds, and its context"
            )
            if share is not None:
                shares[pid].append(share)
    if not gpus.capabilities(0).process_utilisation:
        pytest.skip("gpu: memory was as expected; this GPU reports no utilisation of processes")
    means = [statistics.fmean(seen) for seen in shares.values()]
    assert min(means) > 0.25 / count, means
    assert sum(means) < 1.2, means


@pytest.mark.parametrize("user", ["", "nobody"])
def test_counters_are_read_without_root(gpus: GpuSet, loads: Loads, user: str) -> None:
    """As the user of the tests, and as `nobody` if that is root: GPM, where the GPU has it."""
    if user and os.geteuid() != 0:
        pytest.skip("the test without a user runs without root")
    assert gpus.count
    loads.start()
    code = [sys.executable, "-c", GPM]
    by = {"user": user, "group": "nogroup", "extra_groups": []} if user else {}
    try:
        done = subprocess.run(code, capture_output=True, text=True, cwd="/", check=False, **by)  # type: ignore[call-overload]
    except (PermissionError, LookupError) as error:
        pytest.skip(f"gpu: {user} cannot run this Python: {error}")
    if user and done.returncode != 0 and "gpm" not in done.stdout:
        pytest.skip(f"gpu: {user} cannot run this Python: {done.stderr.splitlines()[-1:]}")
    lines = done.stdout.splitlines()
    if lines == ["gpm False"]:
        pytest.skip("gpu: no GPM for this user on this GPU (before Hopper, or counters are restricted)")
    active, occupancy, dram = map(float, lines[1].split())
    assert active > 0.5, "a load that has blocks on all multiprocessors"
    assert 0.0 < occupancy <= 1.0
    assert 0.0 <= dram < 0.5, "it computes, and reads little"
